"""Checks of how a handler loads: imports, requirements, the mode of networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from modelserver.tools.doctor.packages import distribution_of, imports_of, missing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from modelserver.engine.wire.probing import Reported, Training
    from modelserver.tools.doctor.chart import Chart

# Seconds from which an import is worth a finding, and a part of the whole that is worth telling.
_COSTLY: Final = 0.1
_SHARE: Final = 0.05
_TOLD: Final = 5


def check_imports(chart: Chart, loaded: Reported, folder: Path) -> None:
    """What loading costs, and what of it is for nothing."""
    whole = loaded.import_seconds + loaded.initialize_seconds
    large = [each for each in loaded.imported if each.own >= _SHARE * whole][:_TOLD]
    chart.figures["load"] = {
        "import_seconds": round(loaded.import_seconds, 3),
        "initialize_seconds": round(loaded.initialize_seconds, 3),
        "packages": {each.name: round(each.own, 3) for each in large},
    }
    unused = {
        (each.package, each.place.file, each.place.line) for each in imports_of(folder) if not each.used
    }
    for each in loaded.imported:
        place = each.place
        if place and each.total >= _COSTLY and (each.name, place.file, place.line) in unused:
            chart.found(
                "import-unused",
                f"{each.name} takes {each.total:.1f} s to import, and {place.file} does not use it.",
                place,
            )
    chart.checked.append("imports")


def check_requirements(chart: Chart, folder: Path, requirements_file: str | None) -> None:
    """Packages that the model's own code imports and no requirements.txt names."""
    file = folder / (requirements_file or "requirements.txt")
    text = file.read_text("utf-8", "replace") if file.is_file() else None
    for package, place in missing(imports_of(folder), text).items():
        lacks = f"{file.name} does not name it" if text is not None else "there is no requirements.txt"
        named = distribution_of(package)
        chart.found(
            "not-required",
            f"{place.file} imports {package}, and {lacks}.",
            place,
            f"Write {named} into requirements.txt, pack it with --requirements-file, and set "
            "install_py_dep_per_model=true.",
        )
    chart.checked.append("requirements")


def check_training(chart: Chart, found: Iterable[Training]) -> None:
    """Networks that compute as if they were trained."""
    place = chart.method("initialize", "load", "handle")
    for each in found:
        network = f"{each.name} ({each.kind}) is in training mode"
        if each.layers:
            chart.found("training-mode", f"{network}, with {', '.join(each.layers)}.", place)
        else:
            chart.found("training-mode-unused", f"{network}.", place)
    if "training mode" not in chart.checked:
        chart.checked.append("training mode")
