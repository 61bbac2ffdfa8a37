from dataclasses import replace

import pytest
import yaml

from modelserver.models.options.yaml_file import parse_model_config
from modelserver.tools.tune.config_file import FIRST_LINE, config_text

FACTS = {"processor": "Fast\nOne", "Python": "3.11"}


def comment_above(text, key):
    lines = text.splitlines()
    index = next(i for i, line in enumerate(lines) if line.startswith(f"{key}:"))
    above = []
    while index and lines[index - 1].startswith("#"):
        index -= 1
        above.insert(0, lines[index])
    return " ".join(above)


def test_keys_have_their_reasons(result):
    """The server reads the file without a warning, and it can be tuned again; a missed goal is at the top."""
    text = config_text(None, result, FACTS)
    config, warnings = parse_model_config(text)
    setting = result.choice.setting

    assert warnings == []
    assert (config.batch_size, config.batch_policy) == (setting.batch_size, setting.policy)
    assert (config.min_workers, config.max_workers) == (setting.workers, setting.workers)
    assert text.startswith(FIRST_LINE)
    assert "20 + 2*n ms" in comment_above(text, "batchSize")
    assert "the limit is 70 ms" in comment_above(text, "batchSize")
    assert "requests/s" in comment_above(text, "minWorkers")
    assert result.choice.setting.policy in comment_above(text, "batchPolicy")
    assert "processor Fast One, Python 3.11" in text.replace("\n# ", " ")
    assert config_text(text, result, FACTS) == text
    result.met = False
    assert "NOT MET" in config_text(None, result, FACTS).partition("minWorkers")[0]


def test_other_values_of_the_archive_stay(result):
    original = (
        "# about workers\nminWorkers: 7\nmaxWorkers: 9\n# seconds\nresponseTimeout: 33  # really\n\n"
        "handler:\n  # inner\n  top_k: 3\nbatchSize: 5\n# last words\n"
    )
    text = config_text(original, result, FACTS)
    document = yaml.safe_load(text)

    assert document["minWorkers"] == document["maxWorkers"] == result.choice.setting.workers
    assert (document["responseTimeout"], document["handler"]) == (33, {"top_k": 3})
    assert document["batchSize"] == result.choice.setting.batch_size
    for comment in ("# seconds\nresponseTimeout: 33  # really\n", "  # inner\n", "# last words\n"):
        assert comment in text
    assert "# about workers" not in text


@pytest.mark.parametrize(
    "original",
    [
        "{minWorkers: 2, handler: {a: 1}}",
        "---\nhandler: {a: 1}\nminWorkers: 2\n...\n",
        "minWorkers: &n 2\nhandler:\n  a: 1\nother: *n\n",
        "? minWorkers\n: 2\nhandler: {a: 1}\n",
        "'minWorkers': 2\nhandler:\n  a: 1\n",
    ],
)
def test_any_yaml_keeps_its_meaning(original, result):
    before = yaml.safe_load(original)
    after = yaml.safe_load(config_text(original, result, FACTS))

    assert after["handler"] == {"a": 1}
    assert after["minWorkers"] == result.choice.setting.workers
    assert after.get("other") == before.get("other")


def test_a_batcher_block_stays_one(result):
    """It means more than its numbers: only these change, and the server reads them from there."""
    text = config_text("batcher:\n  maxBatchSize: 3\n  timeout: 9\n", result, FACTS)
    config, warnings = parse_model_config(text)

    assert warnings == []
    assert (config.batcher.max_batch_size, config.batcher.timeout) == (result.choice.setting.batch_size, 9)
    assert config.batch_size is None


def test_threads_of_ones_own_are_the_models(result):
    assert "workerThreads" not in yaml.safe_load(config_text("workerThreads: 9\n", result, FACTS))
    point = result.choice
    result.points.append(point)
    result.chosen = replace(point, setting=replace(point.setting, threads=3))

    config, warnings = parse_model_config(text := config_text(None, result, FACTS))
    assert (config.worker_threads, warnings) == (3, [])
    assert "with an equal share of the cores" in comment_above(text, "workerThreads").replace(" # ", " ")


def test_the_queue_grows_with_the_clients(result):
    point = result.choice
    result.chosen = replace(point, figure=replace(point.figure, clients=300))

    assert yaml.safe_load(config_text(None, result, FACTS))["jobQueueSize"] == 600
    assert yaml.safe_load(config_text("jobQueueSize: 9000", result, FACTS))["jobQueueSize"] == 9000
