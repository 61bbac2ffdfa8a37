import json

from docs.trace_picture import RECORDED, picture, rows


def test_the_picture_is_made_from_the_recorded_trace():
    """``python -m docs.trace_picture > docs/pictures/trace.svg`` was run; each span has its row."""
    recorded = json.loads(RECORDED.read_text())
    spans = rows(recorded)

    assert len(spans) == len(recorded)
    assert [span.depth for span in spans[:4]] == [0, 1, 1, 2]
    assert picture(spans) == RECORDED.with_suffix(".svg").read_text()
