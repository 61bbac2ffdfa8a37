import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.errors import InvalidModel
from modelserver.models.archives.manifest import Manifest, check_handler, parse_manifest


def manifest(**fields):
    return json.dumps(fields).encode()


def test_all_fields_are_read():
    """The fields of reference 10.2 that the server acts on arrive, and the document itself is kept."""
    document = {
        "createdOn": "25/07/2020 00:48:08",
        "runtime": "python3",
        "description": "digits",
        "model": {
            "modelName": "noop",
            "serializedFile": "model.pt",
            "handler": "handler.py:go",
            "modelFile": "model.py",
            "modelVersion": "2.1",
            "extensions": "x",
            "requirementsFile": "requirements.txt",
            "configFile": "model-config.yaml",
            "sourceVocab": "/data/vocab.pt",
        },
        "archiverVersion": "0.12.0",
    }

    parsed = parse_manifest(json.dumps(document).encode())

    assert parsed == Manifest(
        model_name="noop",
        model_version="2.1",
        handler="handler.py:go",
        runtime="python3",
        requirements_file="requirements.txt",
        config_file="model-config.yaml",
    )
    assert parsed.raw == document


def test_silent_and_old_manifests_are_read():
    """An empty manifest is version 1.0 of the python runtime, without a name. The fields of older archivers,
    and a byte order mark, are no error; a version written as a number keeps its digits, as TorchServe's
    reader does.
    """
    assert parse_manifest(b"{}") == Manifest(model_name=None, model_version="1.0", runtime="python")

    old = manifest(
        specificationVersion="1.0",
        implementationVersion="1.0",
        modelServerVersion="1.0",
        engine={"engineName": "pytorch"},
        model={"modelName": "old", "handler": "service:handle"},
    )

    parsed = parse_manifest(b"\xef\xbb\xbf" + old)

    assert (parsed.model_name, parsed.handler) == ("old", "service:handle")
    assert parsed.raw["modelServerVersion"] == "1.0"

    parsed = parse_manifest(b'{"model": {"modelName": 7, "modelVersion": 1.10}}')

    assert (parsed.model_name, parsed.model_version) == ("7", "1.10")
    assert parsed.raw["model"]["modelVersion"] == 1.1


@pytest.mark.parametrize(
    ("written", "runtime"), [("PYTHON", "python"), ("Python3", "python3"), ("lsp", "LSP")]
)
def test_runtime_is_read_in_any_case(written, runtime):
    """Upper and lower case do not matter, as in TorchServe."""
    assert parse_manifest(manifest(runtime=written)).runtime == runtime


@pytest.mark.parametrize("runtime", [b'"java"', b"null", b'""'])
def test_unknown_runtime_is_refused(runtime):
    """A runtime other than python, python3 and LSP is refused with TorchServe's words."""
    with pytest.raises(InvalidModel, match=r"^Runtime is not defined or invalid\.$"):
        parse_manifest(b'{"runtime": ' + runtime + b"}")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1, column 1"),
        (b'{"model": ', "line 1"),
        (b'{"model":\n 5,}', "line 2"),
        (b"[]", "must be a JSON object"),
        (b'{"model": 5}', "model must be an object"),
        (b'{"model": {"handler": []}}', "model.handler must be a string"),
        (b'{"createdOn": {}}', "createdOn must be a string"),
        (b"\xff\xfe{\x00}\x00", "valid UTF-8"),
        (b'{"model": {"modelName": "a\\u0000b"}}', "unprintable"),
        (b'{"x": "\\ud800"}', "valid UTF-8"),
        (b'{"x": NaN}', "NaN is not JSON"),
        (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"x": ' + b"9" * 10_000 + b"}", "digits"),
    ],
    ids=range(13),
)
def test_malformed_manifest_says_what_is_wrong(data, reason):
    """F59: a manifest that is no object of the right types is a 400 in TorchServe's words with the cause."""
    with pytest.raises(InvalidModel) as caught:
        parse_manifest(data)

    assert caught.value.status == 400
    assert caught.value.message.startswith("Failed to parse signature.json. ")
    assert reason in caught.value.message


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(data):
    """F59: no input of any kind raises anything but the refusal."""
    with contextlib.suppress(InvalidModel):
        assert isinstance(parse_manifest(data), Manifest)


INSIDE = "image_classifier handler.py handler:handle my-handler.py:go sub/handler.py:go größe:los"


@pytest.mark.parametrize("handler", INSIDE.split())
def test_handlers_inside_the_archive_are_accepted(handler):
    check_handler(handler)


OUTSIDE = r"""
    ../handler.py:fn a/../../handler.py .. /etc/handler.py:fn C:\handler.py C:/handler.py a\b.py :fn handler:
    handler:a:b handler:__import__('os').system('x')
"""
ODD = ["", "  ", "handler:a b", "hand\x00ler", "hand\nler", "hand\u202eler"]


@pytest.mark.parametrize("handler", [*OUTSIDE.split(), *ODD])
def test_handlers_leaving_the_archive_are_refused(handler):
    """F59: a handler outside the archive, disguised or no name at all is refused."""
    with pytest.raises(InvalidModel, match=r"^Invalid handler "):
        check_handler(handler)


@pytest.mark.parametrize("field", ["serializedFile", "modelFile", "requirementsFile", "configFile"])
@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "c:\\x"])
def test_files_leaving_the_archive_are_refused(field, path):
    """F59: the files of a manifest lie in the archive."""
    with pytest.raises(InvalidModel, match=rf"^Invalid {field} "):
        parse_manifest(manifest(model={field: path}))
