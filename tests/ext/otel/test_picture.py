import json

from docs.trace_picture import RECORDED, rows


def test_the_picture_is_made_from_the_recorded_trace():
    """Each span has its row."""
    recorded = json.loads(RECORDED.read_text())
    spans = rows(recorded)

    assert len(spans) == len(recorded)
    assert [span.depth for span in spans[:4]] == [0, 1, 1, 2]
