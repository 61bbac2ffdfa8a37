import json

import pytest
from tests.e2e.browsing import wait_for
from tests.e2e.serving import Home, Server, serving, wait_until
from tests.e2e.test_console import BROKEN, EVIL

pytestmark = pytest.mark.slow

TALKS = """import sys


def handle(data, context):
    if data is None:
        print("<b>ready</b>", flush=True)
        return None
    text = bytes(data[0].get("body") or data[0].get("data")).decode()
    print(f"out: {text}", flush=True)
    print(f"err: {text}", file=sys.stderr, flush=True)
    if text == "fail":
        raise ValueError("no <i>weights</i>")
    return [text]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    (folder / "talks.py").write_text(TALKS)
    (folder / "broken.py").write_text(BROKEN)
    return folder


@pytest.fixture(scope="module")
def server(store, tmp_path_factory):
    """One whose log began before its start, with models: one talks, one has an evil name, one fails."""
    home = Home(tmp_path_factory.mktemp("open"))
    (home.path / "logs").mkdir()
    line = "2026-05-30T21:46:04,000 [ERROR] MainThread modelserver.x - The server before <u>failed</u>\n"
    (home.path / "logs" / "ts_log.log").write_text(line)
    with serving(Server(home, store)) as started:
        started.registered("talks.py")
        started.registered("talks.py", model_name=EVIL)
        assert started.register("broken.py", synchronous=False).status_code == 202
        wait_until(lambda: started.describe("broken")["workers"][0]["status"] == "FAILED", "it fails")
        yield started


def open_list(page, title):
    page.get_by_role("button", name=title, exact=True).click()
    page.get_by_role("heading", name=title).wait_for()
    page.get_by_text("Following").wait_for()
    return page.get_by_role("log")


def test_events_are_seen_searched_and_followed(page, server):
    """The newest first; what went wrong has its paragraph of the runbook; names and messages are text."""
    events = open_list(page, "Events")
    failed = events.locator("article", has_text="load failed").first
    failed.get_by_text("What to do: ModelserverNoWorker").click()
    advice = failed.locator("details p").inner_text()
    failed_text = failed.inner_text()
    server.registered("talks.py", model_name="later")
    events.locator("article", has_text="later").first.wait_for()
    times = events.locator("time").evaluate_all("(all) => all.map((each) => each.getAttribute('datetime'))")

    assert "GET /models/NAME" in advice
    assert "no labels <script>hacked=1</script>" in failed_text
    assert times == sorted(times, reverse=True)
    assert "later" in events.locator("article").first.inner_text()

    page.get_by_label("Model", exact=True).fill(EVIL)
    wait_for(
        page, "[...document.querySelectorAll('article')].every((each) => each.innerText.includes('onerror'))"
    )
    assert events.locator("article").count() >= 1
    page.get_by_label("Model", exact=True).fill("")
    page.get_by_label("Search").fill("is READY")
    page.get_by_label("Level").select_option("error")
    page.get_by_text("Nothing fits.").wait_for()
    page.get_by_label("Level").select_option("info")
    events.locator("article", has_text="is ready").first.wait_for()
    assert events.locator("article", has_text="default changed").count() == 0

    events.get_by_role("button", name="later 1.0").first.click()
    page.get_by_role("heading", name="later 1.0").wait_for()
    assert page.evaluate("typeof hacked") == "undefined"
    server.unregister("later")


def test_a_request_leads_to_its_lines_and_status(page, server):
    """From its id, whether it failed or not; lines of before the start are there, too."""
    lines = open_list(page, "Logs")
    lines.get_by_text("The server before <u>failed</u>").wait_for()
    lines.get_by_text("<b>ready</b>").first.wait_for()
    for text in ("well", "fail"):
        server.inference.post("/predictions/talks", content=text, headers={"x-request-id": f"my-{text}"})
    lines.get_by_text("out: well").wait_for()
    page.get_by_label("Model", exact=True).fill("talks")
    page.get_by_label("Level").select_option("warn")
    lines.get_by_text("out: well").wait_for(state="detached")
    lines.get_by_text("err: fail").wait_for()
    page.get_by_label("Model", exact=True).fill("")
    page.get_by_label("Level").select_option("debug")
    page.get_by_label("Source").select_option("requests")
    lines.get_by_role("button", name="my-well").click()
    answers = page.get_by_role("group", name="Answers to this request")
    answers.get_by_text("Request my-well was answered with status 200").wait_for()
    answers_text = answers.inner_text()

    assert "POST /predictions/talks" in answers_text
    assert page.get_by_label("Text or request id").input_value() == "my-well"
    assert lines.locator(".line").count() == 1
    marks = page.evaluate("[typeof hacked, document.querySelectorAll('main u, main i').length]")
    assert marks == ["undefined", 0]


def test_the_last_error_of_a_model_leads_to_its_log(page, server):
    server.inference.post("/predictions/talks", content="fail", headers={"x-request-id": "the-one"})
    page.get_by_role("link", name="talks", exact=True).click()
    page.get_by_role("group", name="Errors").get_by_text("request the-one").wait_for()
    page.get_by_role("button", name="Its lines in the log").click()
    page.get_by_text("Request the-one was answered with status 503").wait_for()


def test_nothing_is_sent_while_nobody_looks(page, server):
    """A list that does not follow, or was left, has no stream."""
    lines = open_list(page, "Logs")
    with stream_ends(page, "console/logs?"):
        page.get_by_label("Follow").click()
        page.get_by_text("Not following").wait_for()
    server.inference.post("/predictions/talks", content="unseen")
    page.get_by_label("Follow").click()
    lines.get_by_text("out: unseen").wait_for()
    with stream_ends(page, "console/logs?"):
        open_list(page, "Events")
    with stream_ends(page, "/events?"):
        page.get_by_role("button", name="All models").click()


def stream_ends(page, path):
    """Waits after the block until a stream is closed. Playwright passes events on only during its calls."""
    return page.expect_event("requestfailed", lambda sent: path in sent.url and "follow=true" in sent.url)


@pytest.mark.parametrize("log_files", ["true", "false"])
def test_lists_outlive_the_server(watched, store, tmp_path, log_files):
    """They go on with what the next server says, which may count from the begin, and ask for its token."""
    home = Home(tmp_path)
    settings = {"log_files": log_files, "token_authorization": "always"}
    first = Server(home, store, settings=settings)

    def enter(server):
        watched.page.get_by_role("textbox", name="Token").fill(server.tokens()["management"])
        watched.page.keyboard.press("Enter")

    with serving(first):
        page = watched.open(first)
        page.get_by_role("dialog").wait_for()
        enter(first)
        page.wait_for_selector("#status[data-state=live]")
        events = open_list(page, "Events")
        events.locator("article", has_text="started").first.wait_for()
        before = events.locator("article").count()
    page.get_by_text("The server is gone; trying again").wait_for()
    with serving(Server(home, store, settings={**first.settings, "load_models": "broken.py"})) as second:
        page.get_by_role("dialog").wait_for()
        enter(second)
        events.locator("article", has_text="load failed").first.wait_for()
        started = events.locator("article b", has_text="started").count()
        lines = open_list(page, "Logs")
        lines.get_by_text("Model server started.").first.wait_for()
        logged = lines.get_by_text("Model server started.").count()

    assert before >= 1
    assert started >= (2 if log_files == "true" else 1)
    assert (logged, started) == ((2, 2) if log_files == "true" else (1, 1))


FEED = """async ([script, many]) => {
  const { List } = await import("/console/static/list.js");
  const { h } = await import("/console/static/dom.js");
  const real = window.fetch;
  let items = [];
  let stream;
  window.fetch = async (url) => {
    const query = new URL(url).searchParams;
    if (query.has("follow")) {
      return new Response(new ReadableStream({ start: (control) => { stream = control; } }));
    }
    const since = Number(query.get("since") ?? 0);
    const fits = items.filter((each) => each.id > since);
    const page = query.has("since") ? fits.slice(0, 200) : fits.slice(-200);
    return new Response(JSON.stringify({ events: page, last: items.at(-1)?.id ?? 0 }));
  };
  const make = (from, to, time) =>
    Array.from({ length: to - from }, (_, index) => ({ id: from + index, time }));
  const until = async (happened) => { while (!happened()) await new Promise((go) => setTimeout(go, 5)); };
  const list = new List({ title: "x", path: "events", name: "events", filters: {}, refused: () => {},
    row: (item) => h("i", {}, `${item.time}${item.id}`), isNewestFirst: true });
  const texts = () => [...list.list.children].map((each) => each.textContent);
  const send = (each) => stream.enqueue(new TextEncoder().encode(
    each.map((item) => `id: ${item.id}\\ndata: ${JSON.stringify(item)}\\n\\n`).join("")));
  items = make(1, 4, "a");
  list.open();
  await until(() => stream && texts().length === 3);
  const steps = {};
  steps.first = texts();
  send(make(4, 4 + many, "a"));
  items.push(...make(4, 4 + many, "a"));
  await until(() => texts()[0] === `a${3 + many}`);
  steps.storm = texts().length;
  for (const [name, next] of Object.entries(script)) {
    stream.close();
    stream = null;
    items = [...(next.anew ? [] : items), ...make(next.anew ? 1 : items.at(-1).id + 1, next.to, next.time)];
    await until(() => stream && texts()[0] === `${next.time}${next.to - 1}`);
    steps[name] = [texts().length, texts().at(-1)];
  }
  list.close();
  window.fetch = real;
  return steps;
}"""


def test_lists_bear_storms_and_long_sleep(page):
    """A few that were missed are added; of very many, and of another server, the newest ones are shown."""
    many = 5000
    script = {
        "nap": {"to": 4 + many + 10, "time": "a"},
        "sleep": {"to": 4 + many + 3000, "time": "a"},
        "restart": {"to": 6, "time": "b", "anew": True},
        "same ids": {"to": 6 + 3, "time": "c", "anew": True},
    }
    steps = page.evaluate(FEED, [script, many])

    assert steps["first"] == ["a3", "a2", "a1"]
    assert steps["storm"] == 1000
    assert steps["nap"] == [1000, f"a{many + 4 + 10 - 1000}"]
    assert steps["sleep"] == [200, f"a{many + 4 + 3000 - 200}"]
    assert steps["restart"] == [5, "b1"]
    assert steps["same ids"] == [8, "c1"]


def test_lists_fit_a_phone(watched, server):
    """And every control has a name."""
    watched.page.set_viewport_size({"width": 390, "height": 844})
    page = watched.open(server)
    for title in ("Events", "Logs"):
        rows = open_list(page, title)
        rows.locator("time").first.wait_for()
        unnamed = page.evaluate(
            """[...document.querySelectorAll("input, select, button")].filter((each) =>
              !(each.labels?.length || each.textContent.trim() || each.getAttribute("aria-label"))).length"""
        )

        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert unnamed == 0


def test_a_page_of_the_log_is_for_those_with_a_token(store, tmp_path):
    with serving(Server(Home(tmp_path), store, settings={"token_authorization": "always"})) as server:
        refused = server.management.get("/console/logs")
        token = {"Authorization": f"Bearer {server.tokens()['management']}"}
        page = json.loads(server.management.get("/console/logs", headers=token).text)

    assert (refused.status_code, refused.json()["type"]) == (400, "InvalidKeyException")
    assert any("Model server started." in line["text"] for line in page["lines"])
