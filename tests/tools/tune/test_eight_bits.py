import inspect
import json
from dataclasses import dataclass, field

import pytest
import yaml
from tests.tools.tune.tune_samples import figure

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.tune.bench import Input, LocalBench
from modelserver.tools.tune.command import FOLDER, ROWS, int8_config, try_int8, with_calibration
from modelserver.tools.tune.errors import SettingRefused
from modelserver.tools.tune.figure import void
from modelserver.tools.tune.goal import ModelSetting
from modelserver.tools.tune.source import open_source

INPUTS = [Input("a.json", b"[1]", "application/json"), Input("b.jpg", b"picture", "image/jpeg")]
NOT_USED = {"asked": "int8", "used": "fp32", "why": "classes disagree"}
IN_INT8 = {"asked": "int8", "used": "int8", "why": "all agree"}


@dataclass
class OneBench:
    """Serves with a rate (0: not at all, negative: with errors) and a precision."""

    rate: float
    precision: dict[str, str] | None = None
    served: list[ModelSetting] = field(default_factory=list)
    is_closed: bool = False

    @property
    def description(self):
        return {"precision": self.precision}

    def serve(self, setting):
        self.served.append(setting)
        if not self.rate:
            raise SettingRefused("no memory")
        return 100

    def closed(self, clients, *_times):
        return figure(self.rate, clients=clients) if self.rate > 0 else void("status 500", clients)

    def close(self):
        self.is_closed = True


def benches(source, own, other):
    """``own`` measures the source, ``other`` the one with int8."""
    return lambda candidate: own if candidate is source else other


@pytest.mark.parametrize(
    ("own", "other", "used", "message"),
    [
        (OneBench(100), OneBench(150, IN_INT8), True, "int8 is used: 150 requests/s in batches of 8"),
        (OneBench(100), OneBench(101, IN_INT8), False, "not used, as it is not faster: 101 requests/s"),
        (OneBench(100), OneBench(0), False, "int8 is not used: no memory"),
        (OneBench(100), OneBench(-1), False, "int8 is not used: 1 x status 500"),
        (OneBench(100), OneBench(150), False, "not used: the handler has no such setting"),
        (OneBench(100), OneBench(150, NOT_USED), False, "int8 is not used: classes disagree"),
    ],
)
def test_int8_is_used_if_it_is_faster_and_good_enough(work, own, other, used, message):
    source = open_source("sleeper.mar", None, work / "unpacked")
    chosen, outcome = try_int8(source, INPUTS, work / "int8", benches(source, own, other), threads=2)

    assert (chosen is not source) is used
    assert message in outcome
    assert all(served == [ModelSetting(ROWS, threads=2)] for served in (own.served, other.served) if served)
    assert all(bench.is_closed for bench in (own, other) if bench.served)
    with pytest.raises(SettingRefused, match="no memory"):
        try_int8(source, INPUTS, work / "other", benches(source, OneBench(0), OneBench(1, IN_INT8)))


def test_the_archive_gets_the_inputs_and_the_keys(work):
    source = open_source("sleeper.mar", None, work / "unpacked")
    other = with_calibration(source, INPUTS, work / "int8")
    (work / "out").mkdir()
    (work / "out" / "model-config.yaml").write_text(other.config_text or "")
    packed_again = other.pack(work / "out" / "model-config.yaml", work / "out")
    again = open_source(str(packed_again), None, work / "again")

    assert (other.label, other.name) == (source.label, source.name)
    for packed in (other, again):
        folder = packed.store / packed.url
        files = {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}
        assert files == {"0000.body": b"[1]", "0001.jpg": b"picture"}
        assert (folder / "sleeper.py").is_file()
        assert packed.config_text.startswith("responseTimeout: 60  # seconds")
        assert yaml.safe_load(packed.config_text)["handler"] == {"precision": "int8", "calibration": FOLDER}


@pytest.mark.parametrize(
    "original", [None, "", "batchSize: 3", "{batchSize: 3}", "handler: {topk: 3}", "handler:\nbatchSize: 3\n"]
)
def test_configuration_gets_int8_keys(original):
    """Our keys are added under ``handler``, and the others stay."""
    before = yaml.safe_load(original or "{}") or {}
    after = yaml.safe_load(int8_config(original))

    own = {"precision": "int8", "calibration": FOLDER}
    assert after == before | {"handler": (before.get("handler") or {}) | own}


@pytest.mark.slow
def test_a_real_network_is_served_in_int8(tmp_path):
    torch = pytest.importorskip("torch")
    from tests.handlers.networks import digits

    from modelserver_handlers.networks.int8 import is_able

    if not is_able():
        pytest.skip("this processor has no AVX2")
    imports = "from __future__ import annotations\nimport torch\nfrom torch import nn\n"
    (tmp_path / "network.py").write_text(imports + inspect.getsource(digits.Residual))
    torch.save(digits.trained(digits.Residual()).state_dict(), tmp_path / "weights.pth")
    files = {"model_file": str(tmp_path / "network.py"), "serialized_file": str(tmp_path / "weights.pth")}
    build_archive(ArchiveConfig("digits", "base_handler", "1.0", export_path=tmp_path, **files))
    bodies = [json.dumps(row).encode() for row in digits.calibration_set().tolist()]
    inputs = [Input(f"{number}.json", body, "application/json") for number, body in enumerate(bodies)]
    source = open_source(str(tmp_path / "digits.mar"), None, tmp_path / "unpacked")
    bench = LocalBench(with_calibration(source, inputs, tmp_path / "int8"), inputs, tmp_path / "bench", None)
    try:
        bench.serve(ModelSetting(ROWS))
        precision = bench.description["precision"]
    finally:
        bench.close()

    assert precision["used"] == "int8", precision
    assert "of the 100 rows of the calibration set" in precision["why"]
