import math

import pytest

from modelserver.engine.tensors.datatypes import pack, unpack
from modelserver.engine.tensors.rows import OutputForm, OutputWish
from modelserver.engine.worker.rows.classes import NotClassifiable, classified

NAN = math.nan


def classes(values, count=2, datatype="FP32", labels=None):
    """The classes of a row with these values; their number is that in the shape."""
    output = OutputForm("y", datatype, (len(values),)), pack(datatype, values)
    form, content = classified(output, OutputWish("y", {"classification": count}), lambda: labels or {})
    result = unpack("BYTES", memoryview(content))
    assert form == OutputForm("y", "BYTES", (len(result),))
    return result


@pytest.mark.parametrize(
    ("datatype", "values", "best"),
    [
        ("INT64", [1, 5, 10, 4], [b"10:2", b"5:1"]),
        ("UINT8", [255, 0, 255], [b"255:0", b"255:2"]),
        ("FP32", [1.1, 3.3, 0.5, 2.4], [b"3.3:1", b"2.4:3"]),
        ("FP32", [1 / 3, 1e-9], [b"0.33333334:0", b"1e-09:1"]),
        ("FP32", [NAN, -math.inf, 1.0], [b"1:2", b"-inf:1"]),
        ("FP64", [0.1, 1 / 3], [b"0.3333333333333333:1", b"0.1:0"]),
        ("FP16", [0.5, 2.0], [b"2:1", b"0.5:0"]),
        ("BF16", [1.0, -1.0], [b"1:0", b"-1:1"]),
        ("FP32", [7.0], [b"7:0"]),
        ("FP32", [], []),
    ],
)
def test_the_highest_values_come_first(datatype, values, best):
    assert classes(values, datatype=datatype) == best


def test_labels_follow_the_index():
    best = classes([0.25, 0.5, 0.125], 3, labels={"1": "töst", "0": "b:c"})
    assert best == ["0.5:1:töst".encode(), b"0.25:0:b:c", b"0.125:2"]


@pytest.mark.parametrize("wish", [None, {}, {"classification": 0}, {"other": 2}])
def test_tensors_stay_without_the_parameter(wish):
    output = OutputForm("y", "BYTES", (1,)), b"x"
    assert classified(output, OutputWish("y", wish), dict) is output


@pytest.mark.parametrize(("datatype", "values"), [("BYTES", [b"a"]), ("BOOL", [True])])
def test_outputs_without_classes_are_refused(datatype, values):
    with pytest.raises(NotClassifiable, match=f"output 'y': there are no classes, as it is {datatype}"):
        classes(values, datatype=datatype)
