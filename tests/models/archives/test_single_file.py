import pytest

from modelserver.errors import ModelNotFound
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.archives.sources import locate
from modelserver.models.archives.urls import UrlPolicy


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("handler.py", SingleFile("handler.py")),
        ("a/handler.py:Sentiment", SingleFile("a/handler.py", "Sentiment")),
        ("handler.py?model_file=a b.pt", SingleFile("handler.py", "", "a b.pt")),
        ("handler.py:f?model_file=w.pt", SingleFile("handler.py", "f", "w.pt")),
        ("net.PT2", SingleFile("net.PT2")),
        ("net.onnx", SingleFile("net.onnx")),
        ("model.mar", None),
        ("handler.py:not-a-name", None),
        ("folder", None),
    ],
)
def test_urls_of_scripts_and_model_files_are_parsed(url, expected):
    assert SingleFile.parse(url) == expected


async def test_clients_stay_in_the_store_but_the_operators_path_is_meant(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "handler.py").write_text("")
    (tmp_path / "outside.py").write_text("")
    (tmp_path / "outside.pt").write_text("")
    for url in (
        f"{tmp_path}/outside.py",
        "../outside.py",
        f"handler.py?model_file={tmp_path}/outside.pt",
        "handler.py?model_file=../outside.pt",
        "absent.py",
    ):
        with pytest.raises(ModelNotFound):
            await locate(url, folder, UrlPolicy(), tmp_path)

    result = await locate(f"{tmp_path}/outside.py", folder, UrlPolicy(), tmp_path, trusted=True)
    assert result.path == tmp_path / "outside.py"

    (tmp_path / "handler.py").write_text("mine = 1")
    result = await locate(f"{tmp_path}/handler.py", folder, UrlPolicy(), tmp_path, trusted=True)
    assert result.path == tmp_path / "handler.py"
