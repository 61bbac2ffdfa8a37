import ast

import pytest

from modelserver.tools.migrate.archives import body_keys, read_archive, ts_imports
from modelserver.tools.migrate.calls import MigrationError


def test_an_archive_tells_what_it_imports_and_reads(site, tmp_path):
    archive = read_archive("reads.mar", site.parent / "store", tmp_path)

    assert archive.handler == "reads.py"
    assert archive.ts_names == {"ts.context.Context": "reads.py, line 3"}
    assert archive.places == {"instances": "reads.py, line 9"}


def test_an_archive_that_is_not_there_is_reported(site, tmp_path):
    with pytest.raises(MigrationError, match=r"^nowhere\.mar: Model not found"):
        read_archive("nowhere.mar", site.parent / "store", tmp_path)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import ts", ["ts"]),
        ("import ts.context, os", ["ts.context"]),
        ("from ts.service import emit_metrics as e", ["ts.service.emit_metrics"]),
        ("from ts.utils.util import *", ["ts.utils.util"]),
        ("from ts.torch_handler import base_handler", ["ts.torch_handler.base_handler"]),
        ("import tsfresh\nfrom .ts import x\nfrom . import ts", []),
        ("def f():\n  from ts.metrics.dimension import Dimension", ["ts.metrics.dimension.Dimension"]),
    ],
)
def test_imports_of_ts_are_listed(code, names):
    assert [name for name, _ in ts_imports(ast.parse(code))] == names


@pytest.mark.parametrize(
    ("code", "keys"),
    [
        ('body["instances"]', ["instances"]),
        ('body.get("inputs", [])', ["inputs"]),
        ('answer["instances"] = 1', []),
        ('print("instances")', []),
        ("body.get()", []),
    ],
)
def test_keys_of_bodies_are_listed(code, keys):
    assert [key for key, _ in body_keys(ast.parse(code))] == keys
