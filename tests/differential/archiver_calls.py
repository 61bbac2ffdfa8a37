"""Calls of the archiver's Python API, for either of both: prints what each returns or raises as JSON.

    python archiver_calls.py FOLDER

in which ``model_archiver`` can be imported, and which holds what is packed.
"""

import argparse
import json
import os
import sys
from unittest import mock

from model_archiver import ModelArchiver, ModelArchiverConfig
from model_archiver.arg_parser import ArgParser
from model_archiver.manifest_components.manifest import Manifest, RuntimeType
from model_archiver.manifest_components.model import Model
from model_archiver.model_archiver_error import ModelArchiverError
from model_archiver.model_packaging import generate_model_archive, package_model
from model_archiver.model_packaging_utils import ModelExportUtils


def config(name, **changes):
    fields = {"model_name": name, "handler": "handler.py", "version": "1.0", "export_path": os.getcwd()}
    return ModelArchiverConfig(
        **{**fields, "serialized_file": "weights.pt", "extra_files": "extra", **changes}
    )


def parsed(*arguments):
    with mock.patch.object(sys, "argv", ["torch-model-archiver", *arguments]):
        return sorted(vars(ArgParser.export_model_args_parser()).items())


def patched():
    args = argparse.Namespace(**vars(config("patched")))
    with mock.patch.object(ArgParser, "export_model_args_parser", return_value=args):
        return generate_model_archive()


FLAGS = ("--model-name", "m", "-v", "1", "--handler", "handler.py")
MODEL = Model("m", "w.pt", "h.py", "net.py", "1.0", "e", "r.txt", "c.yaml")
UTILS = ModelExportUtils
CALLS = {
    "fields": lambda: list(vars(config("x"))),
    "from_args": lambda: vars(ModelArchiverConfig.from_args(argparse.Namespace(**vars(config("x"))))),
    "flags": lambda: parsed(*FLAGS),
    "more flags": lambda: parsed(
        *FLAGS, "-f", "--archive-format", "tgz", "--runtime", "LSP", "-r", "r", "-c", "c"
    ),
    "default": lambda: ModelArchiver.generate_model_archive(config("default")),
    "again": lambda: ModelArchiver.generate_model_archive(config("default")),
    "forced": lambda: ModelArchiver.generate_model_archive(config("default", force=True)),
    "store": lambda: generate_model_archive(config("store", archive_format="zip-store")),
    "tgz": lambda: generate_model_archive(config("tgz", archive_format="tgz")),
    "folder": lambda: generate_model_archive(config("folder", archive_format="no-archive")),
    "patched": patched,
    "package": lambda: package_model(config("packed"), '{"mine": 1}'),
    "bad name": lambda: ModelArchiver.generate_model_archive(config("a b")),
    "bad export path": lambda: ModelArchiver.generate_model_archive(config("x", export_path="handler.py")),
    "no extra": lambda: ModelArchiver.generate_model_archive(config("x", extra_files="none")),
    "model": lambda: [str(MODEL), repr(MODEL), MODEL.model_dict, MODEL.model_name, MODEL.extensions],
    "short model": lambda: [str(Model("m", None, "h")), Model("m", None, "h").model_file],
    "manifest": lambda: json.loads(str(Manifest("python", MODEL)))["model"],
    "manifest fields": lambda: sorted(vars(Manifest(RuntimeType.LSP.value, MODEL))),
    "runtimes": lambda: [(kind.name, kind.value) for kind in RuntimeType],
    "paths": lambda: [
        UTILS.get_archive_export_path("/x", "m", kind) for kind in ("default", "zip-store", "tgz")
    ],
    "folder path": lambda: UTILS.get_archive_export_path("/x", "m", "no-archive"),
    "not there": lambda: UTILS.check_mar_already_exists("none", "/x", False),
    "there": lambda: UTILS.check_mar_already_exists("default", os.getcwd(), False),
    "there, forced": lambda: UTILS.check_mar_already_exists("default", ".", True),
    "one": lambda: [UTILS.find_unique(["a.pt", "b"], ".pt"), UTILS.find_unique(["b"], ".pt")],
    "several": lambda: UTILS.find_unique(["a.pt", "b.pt"], ".pt"),
    "model of a configuration": lambda: str(UTILS.generate_model(config("x"))),
    "manifest of a configuration": lambda: json.loads(UTILS.generate_manifest_json(config("x")))["model"],
    "made": lambda: UTILS.make_dir("made"),
    "step": lambda: UTILS.archive("made", "step", "extra", '{"step": 1}', "zip-store"),
    "removed": lambda: UTILS.clean_temp_files(["made/step.mar"]),
    "name": lambda: UTILS.check_model_name_regex_or_exit("x y"),
    "inputs": lambda: UTILS.validate_inputs("m", "."),
    "inputs, no folder": lambda: UTILS.validate_inputs("m", "none"),
}


def outcome(call):
    try:
        return {"returns": call()}
    except ModelArchiverError as error:
        return {"raises": "ModelArchiverError", "words": str(error).replace(os.getcwd() + os.sep, "")}
    except OSError as error:
        return {"raises": type(error).__name__, "words": str(error)}


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    print(json.dumps({name: outcome(call) for name, call in CALLS.items()}))
