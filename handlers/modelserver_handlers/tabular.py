"""``Tabular``: rows of numbers, by models of scikit-learn (``.joblib``, ``.pkl``, ``.skops``) and XGBoost
(``.json``, ``.ubj``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy
import numpy.typing

from modelserver_handlers.errors import ModelLoadError, first_line
from modelserver_handlers.typed.handler import Handler, HandlerSignature
from modelserver_handlers.typed.signature import JSON, Described

_Predict = Callable[[Any], Any]


class Tabular(Handler):
    """Answers a list of numbers with what the model predicts for it: a label, a number or a list of them."""

    def load(self, context: Any) -> None:
        """Load the model. Raises ModelLoadError naming the file, and what is missing or wrong."""
        file = context.manifest["model"].get("serializedFile") or ""
        path = Path(context.system_properties["model_dir"]) / file
        loader = _LOADERS.get(path.suffix.lower())
        if loader is None:
            raise ModelLoadError(f"serializedFile {file!r}: a file ending in {', '.join(_LOADERS)} is needed")
        self._predict, self._features = loader(path)

    def prepare(self, row: numpy.typing.NDArray[numpy.float64]) -> Any:
        """The row, if it has as many numbers as the model was trained with."""
        if row.ndim != 1 or self._features not in (None, len(row)):
            count = "" if self._features is None else f"{self._features} "
            raise ValueError(f"a row is a list of {count}numbers, got the shape {list(row.shape)}")
        return row

    def predict(self, rows: numpy.ndarray) -> list[Any]:
        """The model's predictions."""
        answers: list[Any] = numpy.asarray(self._predict(rows)).tolist()
        return answers

    def _ms_signature(self) -> HandlerSignature:
        schema: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
        if self._features is not None:
            schema |= {"minItems": self._features, "maxItems": self._features}
        tensor = ("input_0", "FP64", (-1, self._features or -1))
        return HandlerSignature(Described((tensor,), JSON, schema), Described())


def _from_pickle(path: Path) -> tuple[_Predict, int | None]:
    return _of_scikit_learn(_imported("joblib", "sklearn", path).load(path), path)


def _from_skops(path: Path) -> tuple[_Predict, int | None]:
    skops = _imported("skops.io", "skops", path)
    if unknown := skops.get_untrusted_types(file=path):
        raise ModelLoadError(
            f"{path.name} has types that skops does not trust ({', '.join(unknown)}): a handler can load it "
            "with skops.io.load(file, trusted=[...])"
        )
    return _of_scikit_learn(skops.load(path), path)


def _of_scikit_learn(model: Any, path: Path) -> tuple[_Predict, int | None]:
    if not callable(getattr(model, "predict", None)):
        raise ModelLoadError(f"{path.name} holds a {type(model).__name__}, which has no method predict")
    return model.predict, getattr(model, "n_features_in_", None)


def _from_xgboost(path: Path) -> tuple[_Predict, int | None]:
    xgboost = _imported("xgboost", "xgboost", path)
    try:
        booster = xgboost.Booster(model_file=str(path))
    except xgboost.core.XGBoostError as error:
        raise ModelLoadError(f"{path.name} is not a model of XGBoost: {first_line(error)}") from error
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    # Where training was stopped early, the trees after the best are left out, as XGBClassifier does.
    best = booster.attr("best_iteration")
    trees = (0, 0 if best is None else int(best) + 1)

    def predict(rows: Any) -> Any:
        scores = booster.inplace_predict(rows, iteration_range=trees)
        if objective == "multi:softprob":
            return scores.argmax(axis=1)
        if objective == "binary:logistic":
            return (scores > 0.5).astype(int)
        return scores.astype(int) if objective in ("multi:softmax", "binary:hinge") else scores

    return predict, booster.num_features()


def _imported(module: str, extra: str, path: Path) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ModelLoadError(
            f"{path.name} needs {error.name}, which is not installed: pip install 'modelserver[{extra}]'"
        ) from None


_LOADERS: Final = {
    **dict.fromkeys((".joblib", ".pkl", ".pickle"), _from_pickle),
    ".skops": _from_skops,
    **dict.fromkeys((".json", ".ubj"), _from_xgboost),
}
