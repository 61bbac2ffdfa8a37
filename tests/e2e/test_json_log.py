import json


def test_every_line_is_an_object(start_server):
    """Start, requests, what handlers print and metrics, of the server and its front ends; all of it is there
    when the server has ended, also with ``async_logging``. What is printed is no exception.
    """
    settings = {"log_format": "json", "metrics_mode": "log", "async_logging": "true", "no_such_key": 1}
    server = start_server(frontend_processes=2, **settings)
    server.registered("echo.mar")
    assert server.predict("echo", b"secret payload").status_code == 200
    server.predict("none")
    server.stop()
    server.home.wait_for_log('"message": "modelserver stopped."')
    printed = [json.loads(line)["message"] for line in server.home.output().splitlines()]
    assert "no_such_key is not a known setting and is ignored" in printed
    logs = {path.name: path.read_text() for path in (server.home.path / "logs").glob("*.log")}

    for name in ("ts_log.log", "access_log.log", "ts_metrics.log", "model_metrics.log"):
        records = [json.loads(line) for line in logs[name].splitlines()]
        assert records, name
        assert all({"time", "level", "logger", "source", "message"} <= record.keys() for record in records)
    assert '"POST /predictions/echo HTTP/1.1\\" 200' in logs["access_log.log"]
    assert not any("secret payload" in text for text in logs.values())
