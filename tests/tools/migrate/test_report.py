import json
import re

from modelserver.tools.migrate.calls import Probe
from modelserver.tools.migrate.proof import LoadFigures
from modelserver.tools.migrate.report import as_html, as_json, document, summary
from modelserver.tools.tune.figure import Figure

FACTS = {"processor": "a <CPU>"}


def test_the_json_has_everything_by_stable_names(proof):
    report = json.loads(as_json(proof, FACTS, "config.properties"))

    keys = "format verdict configuration machine requests models missing differences reasons usage figures"
    assert list(report) == [*keys.split(), "advice", "remarks"]
    counts = {"same": len(proof.compared) - 2, "explained": 1, "unknown": 1}
    assert report["requests"] == {"asked": len(proof.compared), **counts, "left_out": 0}
    assert [difference["reasons"] for difference in report["differences"]] == [[["phrase"]], []]
    assert report["reasons"]["phrase"]["requests"] == 1
    assert set(report["usage"]) == {"endpoints", "flags", "keys", "handlers", "ts_names"}
    assert report["figures"]["memory_bytes"] == {"torchserve": 300 << 20, "modelserver": 300 << 20}


def test_the_page_needs_nothing_and_trusts_nobody(proof):
    html = as_html(proof, FACTS, "config.properties")

    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "a &lt;CPU&gt;" in html
    assert not re.search(r"(src|href)=", html)
    assert "prefers-color-scheme: dark" in html
    assert "There are differences without a known reason." in html


def test_secrets_are_not_reported(proof):
    result = next(each for each in proof.compared if each.what)
    headers = (("Authorization", "Bearer abc123"), ("X-Kind", "mine"))
    secret = Probe(*(getattr(result.call, name) for name in ("name", "port", "method", "path")), headers)
    object.__setattr__(result, "call", secret)
    texts = as_html(proof, FACTS, ""), as_json(proof, FACTS, "")

    assert ["abc123" in text for text in texts] == [False, False]
    assert all("mine" in text for text in texts)


def test_the_terminal_gets_a_few_lines(proof):
    first, *unknown, split, remove, last = summary(proof)

    assert first.endswith("answered the same, 1 differ as explained, 1 for unknown reasons")
    assert [line.startswith("unknown: ") for line in unknown] == [True]
    assert split.startswith("change: Handlers that read `instances`")
    assert remove == "change: Remove settings that have no effect here: number_of_netty_threads."
    assert last == "There are differences without a known reason."


def test_load_is_in_the_table_and_what_failed_says_so(proof):
    good = Figure(10, 100.0, 1.0, 2.0, 3.0, clients=1)
    bad = Figure(0, 0.0, 0.0, 0.0, 0.0, clients=8, failures={"status 503": 3})
    proof.measured.append(LoadFigures("plain", "a text", "TorchServe", good, bad))
    (load,) = document(proof, {}, "")["figures"]["load"]

    assert load["alone"] == {"clients": 1, "requests_per_second": 100.0, "p50_ms": 1.0, "p99_ms": 3.0}
    assert load["full"] == {"clients": 8, "failed": "3 x status 503"}
    assert "3 x status 503" in as_html(proof, {}, "")
