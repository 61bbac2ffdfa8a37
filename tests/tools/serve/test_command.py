from modelserver.__main__ import main
from modelserver.tools.serve.command import advised


def test_a_mistake_is_one_line(capsys):
    assert main(["serve", "absent.py"]) == 1
    assert capsys.readouterr().out == "SOURCE: absent.py does not exist\n"


def test_bad_setting_is_reported(tmp_path, monkeypatch, capsys):
    (tmp_path / "handler.py").write_text("")
    (tmp_path / "mine.properties").write_text("job_queue_size=many\n")
    monkeypatch.chdir(tmp_path)

    assert main(["serve", "handler.py", "--ts-config", "mine.properties"]) == 1
    assert "job_queue_size=many" in capsys.readouterr().out


def test_a_port_in_use_is_explained():
    message = "Cannot listen on management_address=http://127.0.0.1:8081: Address already in use"

    assert advised(message).startswith("Port 8081, for management, is in use by another program")
    assert "--port" in advised(message)
    assert advised("other") == "other"
