"""Rows of numbers, by models of scikit-learn and XGBoost, in a worker as the server starts it."""

import functools
import json
import sys

import joblib
import numpy
import pytest

from modelserver import testing
from modelserver.errors import InvalidModel
from modelserver.ext.files.layout import lay_out_file
from modelserver.models.archives.single_file import SingleFile
from modelserver_handlers.context import Context
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.tabular import Tabular

# One row for each of three kinds of iris.
SOME = [[5.1, 3.5, 1.4, 0.2], [5.0, 2.0, 3.5, 1.0], [5.9, 3.0, 5.1, 1.8]]


@functools.cache
def iris():
    """The rows and classes that models learn; scikit-learn takes seconds to import."""
    from sklearn.datasets import load_iris

    return load_iris()


@pytest.fixture(scope="session")
def pipeline():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    names = iris().target_names[iris().target]
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(iris().data, names)


def boosted(path, objective, labels, **parameters):
    xgboost = pytest.importorskip("xgboost")
    booster = xgboost.train({"objective": objective, **parameters}, xgboost.DMatrix(iris().data, labels), 3)
    booster.save_model(path)
    return booster


def loaded(path):
    context = Context("m", str(path.parent), {"model": {"serializedFile": path.name}}, 8, None, "0")
    handler = Tabular()
    handler.initialize(context)
    return handler


@pytest.mark.slow  # starts a worker with scikit-learn
def test_a_pipeline_answers_every_protocol(pipeline, tmp_path):
    """One of the files in docs/serve.md."""
    joblib.dump(pipeline, tmp_path / "iris.joblib")
    labels = pipeline.predict(SOME).tolist()
    with testing.client(tmp_path / "iris.joblib", batch_size=4, trust_pickles=True) as client:
        assert client.name == "iris"
        assert [answer.text for answer in client.predict_batch(SOME)] == labels
        assert client.v1(SOME).json()["predictions"] == labels
        for datatype in ("FP32", "FP64"):
            numbers = [number for row in SOME for number in row]
            tensor = {"name": "x", "shape": [3, 4], "datatype": datatype, "data": numbers}
            assert client.v2([tensor]).json()["outputs"][0]["data"] == labels
        short = client.predict([1.0, 2.0])
        assert short.status == 400
        assert short.json()["message"] == "a row is a list of 4 numbers, got the shape [2]"
        (declared,) = client.model.signature.inputs
        assert (declared.datatype, list(declared.shape)) == ("FP64", [-1, 4])


@pytest.mark.slow  # starts a worker with scikit-learn
def test_a_pickle_needs_trust(pipeline, tmp_path):
    joblib.dump(pipeline, tmp_path / "iris.joblib")
    with (
        pytest.raises(
            InvalidModel, match=r"a pickle \(sklearn\.pipeline\.Pipeline\), which can run any code"
        ),
        testing.client(tmp_path / "iris.joblib"),
    ):
        pass


def test_skops_needs_no_trust(pipeline, tmp_path):
    skops = pytest.importorskip("skops.io")
    skops.dump(pipeline, tmp_path / "iris.skops")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    skops.dump(make_pipeline(FunctionTransformer(json.dumps), LogisticRegression()), tmp_path / "odd.skops")
    lay_out_file(SingleFile(str(tmp_path / "iris.skops")), tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "MAR-INF" / "MANIFEST.json").read_text())

    assert manifest["model"]["handler"] == "tabular"
    assert loaded(tmp_path / "iris.skops").predict(numpy.array(SOME)) == pipeline.predict(SOME).tolist()
    with pytest.raises(ModelLoadError, match=r"odd\.skops has types that skops does not trust \(json\.dumps"):
        loaded(tmp_path / "odd.skops")


@pytest.mark.parametrize("suffix", [".json", ".ubj"])
def test_xgboost_is_served_in_both_formats(suffix, tmp_path):
    rows = numpy.array(SOME)
    path = tmp_path / f"m{suffix}"
    boosted(path, "multi:softprob", iris().target, num_class=3)
    assert loaded(path).predict(rows) == [0, 1, 2]
    boosted(path, "multi:softmax", iris().target, num_class=3)
    assert loaded(path).predict(rows) == [0, 1, 2]
    boosted(path, "binary:logistic", iris().target == 2)
    assert loaded(path).predict(rows) == [0, 0, 1]
    expected = boosted(path, "reg:squarederror", iris().target).inplace_predict(rows)
    assert loaded(path).predict(rows) == pytest.approx(expected.tolist())


def test_trees_after_the_best_round_do_not_count(tmp_path):
    booster = boosted(tmp_path / "m.json", "reg:squarederror", iris().target)
    booster.set_attr(best_iteration=0)
    booster.save_model(tmp_path / "m.json")
    rows = numpy.array(SOME)

    assert loaded(tmp_path / "m.json").predict(rows) == pytest.approx(
        booster.inplace_predict(rows, iteration_range=(0, 1)).tolist()
    )


def test_files_that_cannot_be_loaded_are_named(tmp_path, monkeypatch):
    joblib.dump({"model": 1}, tmp_path / "dict.joblib")
    for name in ("other.json", "other.txt", "absent.joblib"):
        (tmp_path / name).write_text("{}")

    with pytest.raises(ModelLoadError, match=r"dict\.joblib holds a dict, which has no method predict"):
        loaded(tmp_path / "dict.joblib")
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(ModelLoadError, match=r"'other\.txt': a file ending in \.joblib, .*\.ubj is needed"):
        loaded(tmp_path / "other.txt")
    with pytest.raises(ModelLoadError, match=r"needs joblib, .*: pip install 'modelserver\[sklearn\]'"):
        loaded(tmp_path / "absent.joblib")
    pytest.importorskip("xgboost")
    with pytest.raises(ModelLoadError, match=r"other\.json is not a model of XGBoost"):
        loaded(tmp_path / "other.json")
