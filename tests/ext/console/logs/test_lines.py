from tests.ext.console.logs.records import answered, texts

from modelserver.ext.console.logs.lines import LineQuery, cut


def test_a_long_text_keeps_its_start_and_end():
    assert cut("x" * 4000) == "x" * 4000
    assert cut("a" * 75 + "b" * 50 + "c" * 25, 100) == "a" * 75 + " ... (50 characters) ... " + "c" * 25


def test_answers_have_their_request_and_trace(ring, log):
    """Also those that succeeded, whose line in the file does not name the request."""
    answered(
        log,
        ('/1.2.3.4:5 "GET /models HTTP/1.1" 200 3', "first"),
        ('/1.2.3.4:5 "POST /predictions/m?q=" - 1" HTTP/1.1" 404 1 second trace_id=4bf92f', "second"),
        ('/1.2.3.4:5 "gRPC org/Infer HTTP/2.0" 14 7 third', "third"),
        ("a format of somebody else", ""),
        ('/1.2.3.4:5 "GET /console/logs?q=first HTTP/1.1" 200 3', "search"),
    )
    page = ring.page(LineQuery(), 10)

    assert [(line.request, line.trace, line.status, line.level) for line in page] == [
        ("first", "", 200, "info"),
        ("second", "4bf92f", 404, "warn"),
        ("third", "", 14, "warn"),
        ("", "", 0, "info"),
    ]
    assert [line.request for line in ring.page(LineQuery(text="first"), 10)] == ["first"]
    assert [line.request for line in ring.page(LineQuery(since=page[1].id), 10)] == ["third", ""]


def test_a_model_has_its_workers_and_what_names_it(ring, log):
    """Not those of a model whose name begins like it."""
    for source in ("W-9000-cat_1.0-stdout", "W-9001-cat_1_0-rank1-stderr", "W-9002-cat_large_1.0-stdout"):
        log.model.info(source, extra={"source": source})
    for text in (
        "Model cat loaded.",
        "Worker W-9000-cat_1.0 is ready",
        "Worker W-9002-cat_large_1.0 is ready",
        "Model cat_large loaded.",
        "concatenated",
        "Model the-cat loaded.",
    ):
        log.server.info(text)
    answered(
        log, ('/c "POST /predictions/cat HTTP/1.1" 200 3', ""), ('/c "GET /models/cat-2 HTTP/1.1" 200 3', "")
    )

    assert texts(ring, model="cat", versions=("1.0", "1_0")) == [
        "W-9000-cat_1.0-stdout",
        "W-9001-cat_1_0-rank1-stderr",
        "Model cat loaded.",
        "Worker W-9000-cat_1.0 is ready",
        '/c "POST /predictions/cat HTTP/1.1" 200 3',
    ]
    assert len(texts(ring, model="cat_large")) == 3
    assert texts(ring, model="<img src=x>") == []


def test_a_name_may_be_anything(ring, log):
    name = "<img src=x onerror=hacked=1>"
    log.model.info("loaded", extra={"source": f"W-9000-{name}_1.0-stdout"})
    answered(log, ('/c "POST /predictions/%3Cimg%20src%3Dx%20onerror%3Dhacked%3D1%3E HTTP/1.1" 200 3', ""))

    assert len(texts(ring, model=name)) == 2
