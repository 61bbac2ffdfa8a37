PAGE = "https://page.example"
ORIGIN, METHODS = "access-control-allow-origin", "access-control-allow-methods"


def test_every_answer_says_it(start_server):
    """From front ends and server: hot and other routes, errors, no HTTP; once each (reference 4.4)."""
    cors = {"cors_allowed_origin": PAGE, "cors_allowed_methods": "GET, POST, OPTIONS"}
    server = start_server(**cors, frontend_processes=2, load_models="echo.mar", default_workers_per_model=1)
    server.wait_ready("echo")
    answers = [
        server.predict("echo", b"x"),
        server.predict("nowhere", b"x"),
        server.predict("echo", b"x" * 7_000_000),
        server.inference.get("/ping"),
        server.inference.get("/nowhere"),
        server.inference.get("/ping", headers={"x": "y" * 70_000}),
        server.management.get("/models"),
        server.metrics.get("/metrics"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 413, 200, 404, 431, 200, 200]
    assert [answer.headers.get_list(ORIGIN) for answer in answers] == [[PAGE]] * len(answers)
    assert {answer.headers[METHODS] for answer in answers} == {"GET, POST, OPTIONS"}

    query = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    for path in ("/predictions/echo", "/nowhere"):
        preflight = server.inference.request("OPTIONS", path, headers=query)
        assert (preflight.status_code, preflight.content) == (200, b"")
        assert preflight.headers[ORIGIN] == PAGE
    described = server.inference.request("OPTIONS", "/predictions/echo")
    assert "paths" in described.json()
