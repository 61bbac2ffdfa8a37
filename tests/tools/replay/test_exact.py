"""The recorded batches, sent again to a model in a worker."""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import MODEL_CODE

from modelserver.errors import ConfigError
from modelserver.models.settings.load import load_settings
from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.replay.command import main
from modelserver.tools.replay.exact import Batch, Replayed, archive_of, batches_of, replay_exactly
from modelserver.tools.replay.sender import TimedResponse


def heads(batch: str, size: int) -> bytes:
    """Header lines of an answer."""
    return b"x-batch-id: %b\r\nx-batch-size: %d\r\nserver-timing: queue;dur=1" % (batch.encode(), size)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A model store with ``neighbours`` and ``rows``."""
    store = tmp_path_factory.mktemp("store")
    for name in ("neighbours", "rows"):
        build_archive(ArchiveConfig(name, str(MODEL_CODE / f"{name}.py"), "1.0", export_path=store))
    return store


@pytest.fixture
def settings_of(store, tmp_path):
    """Settings with the store."""
    return lambda **flags: load_settings({"model_store": str(store), **flags}, {}, tmp_path)


@pytest.fixture
def asked(make_call):
    """A call with a JSON body, of a batch."""

    def make(number, body, batch, size, model="neighbours", **changes):
        return make_call(
            **{
                "number": number,
                "target": f"/predictions/{model}",
                "model": model,
                "headers": [(b"content-type", b"application/json")],
                "body": body,
                "lines": heads(batch, size) if batch else b"",
                **changes,
            }
        )

    return make


def test_the_batches_of_a_recording(make_call) -> None:
    """In the order of the queue, as are the calls of each; not those of calls that tell none."""
    calls = [
        make_call(number=4, lines=heads("b", 2)),
        make_call(number=1, lines=heads("a", 2)),
        make_call(number=3, lines=b""),
        make_call(number=2, lines=heads("b", 2)),
    ]
    found = batches_of(calls)

    assert [[call.number for call in batch.calls] for batch in found] == [[1], [2, 4]]


@pytest.mark.parametrize(
    ("answers", "difference"),
    [
        ([heads("x", 2), heads("x", 2)], ""),
        ([heads("x", 1), heads("y", 1)], "2 batches, of 1 and 1"),
        ([heads("x", 3), heads("x", 3)], "one of 3"),
        ([b"", b""], "none"),
    ],
)
def test_what_became_of_a_batch(make_call, answers, difference) -> None:
    """It is the recorded one if all answers tell the same batch, of the same size."""
    sent = [TimedResponse(0, 0, 200, lines) for lines in answers]
    batch = Batch(2, [make_call(), make_call()], sent)
    replayed = Replayed([batch], 1)

    assert batch.difference == difference
    assert replayed.exact is not difference
    assert replayed.lines()[0] == f"{0 if difference else 1} of 1 batches are the recorded ones."
    assert any(f"a batch of 2 became {difference}" in line for line in replayed.lines()) is bool(difference)
    assert replayed.lines()[-1] == "Requests that were in no batch, and are not sent: 1."


async def test_archives(settings_of) -> None:
    """As the settings name them, then by their names in the store; otherwise the message says what to do."""
    plain = settings_of().settings
    named = settings_of(load_models="other=rows.mar").settings

    assert (await archive_of("rows", plain)).url == "rows.mar"
    other = await archive_of("other", named)
    assert (other.url, other.model_name) == ("rows.mar", "other")
    assert (await archive_of(None, named)).model_name == "other"
    with pytest.raises(ConfigError, match="--models gone=ARCHIVE"):
        await archive_of("gone", plain)
    with pytest.raises(ConfigError, match="name no model"):
        await archive_of(None, plain)


def test_batches_are_sent_as_they_were(settings_of, asked) -> None:
    """Rows keep their order and batch, whatever the order of the file and however long a body is read; each
    model is asked by itself.
    """
    large = "x" * (1 << 20)
    calls = [
        asked(5, b"3", "b", 3),
        asked(2, b"7", "a", 1),
        asked(3, b"-3", "b", 3),
        asked(4, b"5", "b", 3),
        asked(
            6, json.dumps({"instances": [1, large]}).encode(), "c", 3, "rows",
            target="/v1/models/rows:predict", headers=[(b"x-request-timeout-ms", b"1")],
        ),
        asked(7, b"4", "c", 3, "rows"),
        asked(8, b"9", "", 0),
    ]  # fmt: skip
    replayed = replay_exactly(calls, settings_of())

    assert replayed.exact
    assert replayed.left_out == 1
    assert [[answer.body for answer in batch.answers] for batch in replayed.batches[:2]] == [
        [b"7"], [b"0", b"5", b"0"]
    ]  # fmt: skip
    first, second = replayed.batches[2].answers
    assert json.loads(first.body)["predictions"] == [2, large]
    assert second.body == b"8"


def test_a_batch_that_ends_its_worker(tmp_path, asked) -> None:
    """It does so again, and the next batch has a new worker."""
    crashing = tmp_path / "crashing.py"
    crashing.write_text(
        "import os\n\ndef handle(data, context):\n"
        "    rows = [row['body'] for row in data or ()]\n"
        "    if {7, 13} <= {*rows}:\n        os._exit(3)\n    return rows\n"
    )
    build_archive(ArchiveConfig("crashing", str(crashing), "1.0", export_path=tmp_path))
    calls = [asked(i, body, batch, 2, "crashing") for i, (body, batch) in enumerate(
        [(b"7", "a"), (b"13", "a"), (b"7", "b"), (b"8", "b")]
    )]  # fmt: skip
    replayed = replay_exactly(calls, load_settings({"model_store": str(tmp_path)}, {}, tmp_path))

    assert replayed.exact
    assert [[answer.status for answer in batch.answers] for batch in replayed.batches] == [
        [500, 500], [200, 200]
    ]  # fmt: skip


def test_a_batch_that_cannot_be_made_again(settings_of, asked) -> None:
    """Instances that were not recorded are told."""
    replayed = replay_exactly([asked(1, b"1", "a", 4)], settings_of())

    assert not replayed.exact
    assert "a batch of 4 became one of 1" in replayed.lines()[1]
    assert "what the sample left out" in replayed.lines()[2]
    assert replayed.batches[0].answers[0].body == b"1"


def test_a_model_that_does_not_load(tmp_path, asked) -> None:
    """Its message is told."""
    broken = tmp_path / "broken.py"
    broken.write_text("def handle(data, context)\n    return data\n")
    build_archive(ArchiveConfig("broken", str(broken), "1.0", export_path=tmp_path))
    loaded = load_settings({"model_store": str(tmp_path)}, {}, tmp_path)

    with pytest.raises(ConfigError, match=r"broken.mar cannot be loaded: .*SyntaxError"):
        replay_exactly([asked(1, b"1", "a", 1, "broken")], loaded)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--exact", "--speed", "2"], "--speed has no effect with --exact"),
        (["--to", "http://127.0.0.1:9", "--models", "a.mar"], "--models has no effect with --to"),
    ],
)
def test_flags_of_the_other_way(flags, said, capsys) -> None:
    """A flag without effect is refused."""
    assert main(["traffic.msr", *flags]) == 2
    assert said in capsys.readouterr().err
