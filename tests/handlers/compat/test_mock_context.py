import io

from modelserver_handlers.compat import mock_context


def test_a_downloaded_model_is_model_pt(tmp_path, monkeypatch):
    monkeypatch.setattr(mock_context, "urlopen", lambda url: io.BytesIO(b"weights"))
    mock_context.download_model("https://example.com/resnet18-f37072fd.pth", tmp_path)
    monkeypatch.setattr(mock_context, "urlopen", None)
    mock_context.download_model("https://example.com/resnet18-f37072fd.pth", tmp_path)

    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("model.pt", b"weights")]
