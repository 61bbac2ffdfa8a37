import base64
import json
import os
import re
import shutil
import signal
import threading

import httpx
import pytest
from tests.e2e.browsing import Watched, select, unfold, wait_for
from tests.e2e.serving import Home, Server, archived, serving, wait_until

pytestmark = pytest.mark.slow

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EVIL = "<img src=x onerror=hacked=1>"
STEADY = '''"""Says how much it got, after a time that grows with the batch."""
import time


def handle(data, context):
    if data is None:
        return None
    time.sleep(0.004 + 0.001 * len(data))
    return [{"got": len(bytes(str(row), "utf-8"))} for row in data]
'''
BROKEN = f'''"""Prints and fails."""
print("reading the labels of <b>cats</b>{EVIL}", flush=True)
raise ModuleNotFoundError("no labels <script>hacked=1</script>")


def handle(data, context):
    return data
'''

RAISES = """def handle(data, context):
    if data is None:
        return None
    return {}["weights"]
"""

# Loads only while there is no file of that name; a request takes until it is killed.
MORTAL = """import os, time
print("at your service", flush=True)
while os.path.exists({hold!r}):
    time.sleep(0.02)


def handle(data, context):
    if data is None:
        return None
    print("this takes long", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    archived(folder, "steady", STEADY)
    archived(folder, "broken", BROKEN)
    return folder


@pytest.fixture(scope="module")
def server(store, tmp_path_factory):
    """One without tokens, with a model that works, one that failed, and one of an evil name."""
    with serving(Server(Home(tmp_path_factory.mktemp("open")), store)) as started:
        started.registered("steady.mar", batch_size=2)
        started.registered("steady.mar", model_name=EVIL)
        assert started.register("broken.mar", synchronous=False).status_code == 202
        wait_until(lambda: started.describe("broken")["workers"][0]["status"] == "FAILED", "it fails")
        yield started


@pytest.fixture(scope="module")
def opened(browser, server):
    made = Watched(browser)
    made.open(server).wait_for_selector("#status[data-state=live]")
    yield made
    made.close()


@pytest.fixture
def page(opened):
    """The same page for all tests; an error in it fails the test."""
    yield opened.page
    opened.check()


@pytest.fixture
def load(server):
    over = threading.Event()

    def ask():
        with httpx.Client(base_url=str(server.settings["inference_address"])) as client:
            while not over.wait(0.02):
                client.post("/predictions/steady", content=b"x")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def test_it_draws_what_is_measured(page, load):
    select(page, "steady")
    shows = "[...document.querySelectorAll('.plot .key b')].filter((each) => /[1-9]/.test(each.textContent))"
    wait_for(page, f"{shows}.length >= 9")
    drawn = """[...document.querySelectorAll('.plot canvas')].map((canvas) => {
      const copy = new OffscreenCanvas(canvas.width, canvas.height)
        .getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] > 100 && data[at + 2] > data[at] + 60) return true;
      }
      return false;
    })"""
    wait_for(page, f"{drawn}.every(Boolean)")

    assert len(page.query_selector_all(".plot canvas")) == 6
    assert "/s" in page.get_by_role("button", name="steady").inner_text()


def test_figures_are_differences_of_counts(page):
    """Percentiles are interpolated within buckets; after a restart of the server there is a gap, no drop."""
    series = page.evaluate(
        """import("/console/static/history.js").then(({ History, quantile }) => {
          const bounds = { latency: [0.01, 0.02], parts: [0.01, 0.02] };
          const counts = (n) => ({
            latency: [n / 100, n, 0, 0], queue: [0, n, 0, 0], handler: [n / 50, 0, n, 0],
            size: [2 * n, n], fill: [n / 4, n], unanswered: n, errors: n / 2,
          });
          const history = new History();
          for (const [at, n] of [[1, 4], [2, 14], [4, 14]]) history.add(at, counts(n), bounds, 2);
          history.interrupt();
          history.add(5, counts(0), bounds, 2);
          history.add(6, counts(5), bounds, 2);
          const { rate, errors, p50, size, busy } = history.series;
          const quantiles = [[0.5, [2, 2, 0]], [0.75, [2, 2, 0]], [0.5, [0, 0, 3]], [0.5, [0, 0, 0]]]
            .map(([share, each]) => quantile(share, bounds.parts, each));
          return { rate, errors, lately: history.errorRate(), p50, size, busy, quantiles };
        })"""
    )

    assert series["quantiles"] == [10, 15, 20, None]
    assert series["rate"] == [10, 0, None, 5]
    assert series["errors"] == [5, 0, None, 2.5]
    assert series["lately"] == 2.5
    assert series["p50"] == [5, None, None, 5]
    assert series["size"] == [2, None, None, 2]
    assert series["busy"] == [10, 0, None, 5]


def test_figures_of_language_models_are_differences_too(page):
    """Those that a model does not have, or not yet, are nothing."""
    series = page.evaluate(
        """import("/console/static/history.js").then(({ History }) => {
          const bounds = { latency: [1], parts: [1], first: [0.01, 0.02], interval: [0.01] };
          const none = { latency: [0, 0, 0], queue: [0, 0, 0], handler: [0, 0, 0], size: [0, 0], fill: [0, 0],
            unanswered: 0, errors: 0 };
          const history = new History();
          const language = (n) => ({
            first: [n, n, 0, 0], tokensIn: 3 * n, tokensOut: 8 * n, streams: n, cache: 25,
          });
          for (const [at, each] of [[1, null], [2, null], [3, language(2)], [5, language(4)]]) {
            history.add(at, { ...none, language: each }, bounds, 1);
          }
          const { tokensIn, tokensOut, first50, interval50, streams, cache } = history.series;
          return { tokensIn, tokensOut, first50, interval50, streams, cache, has: history.has("hits") };
        })"""
    )

    assert series["tokensIn"] == [None, 6, 3]
    assert series["tokensOut"] == [None, 16, 8]
    assert series["first50"] == [None, 5, 5]
    assert series["interval50"] == [None, None, None]
    assert (series["streams"], series["cache"]) == ([None, 2, 4], [None, 25, 25])
    assert series["has"] is False


def test_what_a_handler_prints_is_text(page):
    """So are the reason of a failure, the last lines and a model's name, whatever they hold."""
    select(page, "broken")
    banner = page.get_by_role("alert").locator("p").inner_text()
    lines = page.get_by_label("Last output before the failure").inner_text()

    assert "failed" in page.get_by_role("button", name="broken").inner_text()
    assert "no labels <script>hacked=1</script>" in banner
    assert f"reading the labels of <b>cats</b>{EVIL}" in lines
    assert "ModuleNotFoundError" in lines
    assert page.evaluate("typeof hacked") == "undefined"

    page.get_by_role("button", name=EVIL).click()
    page.get_by_role("heading", name=f"{EVIL} 1.0").wait_for()
    unfold(page, "Try a request").get_by_role("button", name="Send", exact=True).click()
    page.locator(".answer td.result", has_text="200").wait_for()

    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img[src=x]").count() == 0


def test_a_version_that_does_not_load_says_how_often_and_when_again(page, server, store):
    (store / "flaky.py").write_text('print("no disk", flush=True)\nraise OSError("not yet")\n')
    assert server.register("flaky.py", synchronous=False).status_code == 202
    select(page, "flaky")
    page.locator(".title-row .state[data-state=retrying]").wait_for()
    tries = page.locator("tr.output .reason", has_text="times in a row; the next try is at ")
    tries.wait_for()
    described = server.describe("flaky")["workers"][0]
    lines = page.get_by_label("Last output of worker")

    assert page.locator("tr:not(.output) .state[data-state=retrying]").count() == 1
    assert described["failedLoads"] >= 2
    assert lines.is_visible()
    assert "no disk" in lines.inner_text()
    server.unregister("flaky")


def test_errors_of_requests_are_red(page, server, store):
    """Although the worker is ready: a rate in the list and in the head; the last error names its request."""
    (store / "raises.py").write_text(RAISES)
    server.registered("raises.py")
    select(page, "raises")
    page.locator(".title-row .state[data-state=ready]").wait_for()
    for number in range(12):
        server.inference.post("/predictions/raises", content=b"x", headers={"x-request-id": f"mine-{number}"})
    page.locator(".title-row .state[data-state=failing]").wait_for()
    head, entry = page.locator(".title-row .rate.bad"), page.locator("#models .rate.bad")
    entry.wait_for()
    head.wait_for()
    output = page.get_by_role("group", name="Errors")
    output.get_by_text("request mine-11: KeyError: 'weights' (raises.py, line 4, in handle)").wait_for()

    assert "errors/s" in head.inner_text()
    assert "errors/s" in entry.inner_text()
    assert "12 KeyError" in output.inner_text()
    colour = "(each) => getComputedStyle(each).color"
    assert head.evaluate(colour) == entry.evaluate(colour) == "rgb(194, 47, 47)"
    server.unregister("raises")


def test_a_killed_worker_stays_on_the_page_until_another_is_ready(page, server, store, tmp_path):
    """Its state, the reason and what it printed; the request that it served gets an error."""
    hold = tmp_path / "hold"
    (store / "mortal.py").write_text(MORTAL.format(hold=str(hold)))
    server.registered("mortal.py")
    select(page, "mortal")
    worker = page.get_by_role("table", name="Workers").locator("tbody tr").first
    worker.locator(".state[data-state=ready]").wait_for()
    pid = server.describe("mortal")["workers"][0]["pid"]
    hold.touch()
    unfold(page, "Try a request").get_by_role("button", name="Send", exact=True).click()
    page.get_by_label("Last output of worker").filter(has_text="this takes long").wait_for(state="attached")
    os.kill(pid, signal.SIGKILL)
    banner = page.get_by_role("alert")
    banner.wait_for()
    page.locator(".answer td.result", has_text="500").wait_for()
    worker.locator(".state[data-state=retrying]").wait_for()
    page.locator(".title-row .state[data-state=retrying]").wait_for()
    output, lines = banner.locator("p").inner_text(), banner.locator("pre").inner_text()
    hold.unlink()
    worker.locator(".state[data-state=ready]").wait_for()
    banner.wait_for(state="hidden")

    assert "SIGKILL" in output
    assert lines.splitlines()[-2:] == ["at your service", "this takes long"]
    assert worker.locator("td").nth(2).inner_text() not in {str(pid), "–"}
    page.locator(".title-row .state[data-state=ready]").wait_for()


def test_versions_come_and_go(page, server, store, tmp_path):
    """Each says whether it is the default. Of a removed one the page says so, until it is back or left."""
    for version in ("1.0", "2.0"):
        archived(store, "twin", STEADY, version, force=True)
        server.registered("twin.mar")
    entries = page.locator("#models button", has_text="twin")
    about = page.get_by_text("default version · twin")
    entries.nth(1).wait_for()
    entries.nth(1).click()
    page.get_by_role("heading", name="twin 2.0").wait_for()
    before = about.inner_text()
    server.management.put("/models/twin/2.0/set-default")
    page.get_by_text("not the default version").wait_for(state="detached")
    after = about.inner_text()
    for version in ("1.0", "2.0"):
        server.management.delete(f"/models/twin/{version}")
    entries.first.wait_for(state="detached")
    page.get_by_role("alert").filter(has_text="twin 2.0 was removed at ").wait_for()

    assert page.get_by_role("heading", level=2).inner_text() == "twin 2.0"
    assert page.locator("[aria-current]").count() == 0
    server.registered("twin.mar")
    page.get_by_text("default version · twin").wait_for()
    server.management.delete("/models/twin")
    page.get_by_role("alert").filter(has_text="twin 2.0 was removed at ").wait_for()
    select(page, "steady")
    assert page.get_by_role("alert").filter(has_text="removed").count() == 0
    assert before.startswith("not the default version · ")
    assert after.startswith("default version · ")


def test_settings_change_while_it_runs(page, server):
    select(page, "steady")
    form = unfold(page, "Settings of this version")
    form.get_by_label("Batch size").fill("4")
    form.get_by_label("Delay in ms").fill("50")
    form.get_by_label("Policy").select_option("greedy")
    form.get_by_label("Fewest workers").fill("2")
    form.get_by_label("Most workers").fill("2")
    form.get_by_role("button", name="Apply").click()
    page.locator("tr:not(.output) .state[data-state=ready]").nth(1).wait_for()
    described = server.describe("steady")
    output = form.get_by_role("status").inner_text()
    form.get_by_label("Most workers").fill("1")
    form.get_by_role("button", name="Apply").click()
    form.get_by_text("max_worker cannot be less than min_worker.").wait_for()

    assert (described["batchSize"], described["maxBatchDelay"], described["minWorkers"]) == (4, 50, 2)
    assert described["batching"]["policy"]["value"] == "greedy"
    assert output == "Processing worker updates..."
    assert form.get_by_text("from register parameter").count() == 3


@pytest.mark.parametrize(("kind", "size"), [("predictions", "picture"), ("v2", "picture"), ("v1", "JSON")])
def test_requests_can_be_tried(page, kind, size):
    select(page, "steady")
    panel = unfold(page, "Try a request")
    panel.get_by_label("Kind").select_option(kind)
    if size == "picture":
        page.evaluate(
            """(text) => {
              const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
              const files = new DataTransfer();
              files.items.add(new File([bytes], "dot.png", { type: "image/png" }));
              document.querySelector(".drop").dispatchEvent(
                new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
            }""",
            base64.b64encode(PICTURE).decode(),
        )
        panel.get_by_alt_text("The chosen picture").wait_for()
    panel.get_by_role("button", name="Send", exact=True).click()
    row = panel.locator(".answer tbody tr")
    row.wait_for()
    cells = row.locator("td").all_inner_texts()
    answer = json.loads(panel.get_by_label("Answer").inner_text())

    assert cells[0] == "200", answer
    assert cells[2] != "–"
    assert int(cells[3]) >= 1
    assert all(cell.endswith("s") for cell in (cells[1], cells[4], cells[5]))
    assert {"predictions": "got", "v1": "predictions", "v2": "outputs"}[kind] in answer


def test_chat_shows_the_answer_and_its_speed(page, server, store, model_store, tmp_path):
    """Models without a chat do not have the box; an error of the model is shown in it."""
    box = page.get_by_role("region", name="Chat")
    select(page, "steady")
    assert box.count() == 0
    assert not page.get_by_role("figure").filter(has_text="Tokens/s").is_visible()
    shutil.copy(model_store / "chatty.mar", store)
    server.registered("chatty.mar")
    select(page, "chatty")
    unfold(page, "Chat")
    box.get_by_label("Message").fill(f"until {tmp_path / 'go'}")
    box.get_by_label("Message").press("Enter")
    box.get_by_text("begun").wait_for()
    (tmp_path / "go").touch()
    box.get_by_text(re.compile(r"^first token after \d\S* m?s · 2 tokens · \d\S* tokens/s$")).wait_for()
    texts = box.get_by_role("log").locator("p").all_inner_texts()
    # The page's own requests are not measured.
    body = {"model": "chatty", "messages": [{"role": "user", "content": "count 3"}], "stream": True}
    assert server.inference.post("/v1/chat/completions", json=body).status_code == 200
    for title in ("Tokens/s", "First token", "Streams"):
        page.get_by_role("figure").filter(has_text=title).wait_for()
    wait_for(page, "[...document.querySelectorAll('.plot canvas')].every((each) => each.clientWidth > 200)")
    assert not page.get_by_role("figure").filter(has_text="Cache").is_visible()
    box.get_by_label("Message").fill("fail")
    box.get_by_role("button", name="Send").click()
    box.get_by_text("no more words").or_(box.get_by_text("Prediction failed")).wait_for()
    server.unregister("chatty")
    select(page, "steady")

    assert texts[0].startswith("until")
    assert texts[1].split() == ["begun", "end"]


def test_a_change_can_be_estimated(page, server, load):
    """Beside what was measured, also on a page just opened; it never holds the event loop up for 20 ms."""

    def count():
        return server.metric("modelserver_request_seconds_count", model_name="steady")

    def stalls():
        short = server.metric("modelserver_loop_stall_seconds_bucket", le="0.02")
        return server.metric("modelserver_loop_stall_seconds_count") - short

    wait_until(lambda: count() > 10, "some requests are served")
    served = count()
    page.reload()
    select(page, "steady")
    before = stalls()
    panel = unfold(page, "What would happen if")
    panel.get_by_label("Batch size").fill("16")
    panel.get_by_role("button", name="Estimate").click()
    rows = panel.locator("tbody tr")
    rows.nth(5).wait_for()
    latency = rows.nth(4).locator("td").all_inner_texts()
    panel.get_by_role("button", name="Use these settings").click()
    settings = page.get_by_role("region", name="Settings of this version")

    output = panel.get_by_role("status").inner_text()
    assert "a batch of n takes" in output
    assert int(output.partition(" ")[0]) >= served
    assert all(each.endswith("s") for each in latency)
    assert settings.get_by_label("Batch size").input_value() == "16"
    assert stalls() == before


def test_the_page_follows_keyboard_and_colours(page):
    """Tab goes down, Enter chooses, every control has a label; plots take on the system's colours at once."""
    page.reload()
    page.locator("#models button").first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(20):
        if page.evaluate("document.activeElement.closest('#models') !== null"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    chosen = page.evaluate("document.activeElement.querySelector('b').textContent")
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, textarea, button")].filter((each) =>
          !(each.labels?.length || each.textContent.trim() || each.getAttribute("aria-label"))).length"""
    )

    page.get_by_role("heading", name=f"{chosen} 1.0").wait_for()
    assert unnamed == 0
    assert page.locator("div[onclick], span[onclick], [tabindex]:not([tabindex='0']):not(main)").count() == 0

    select(page, "steady")
    look = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(look)
    page.evaluate("document.querySelector('.plot canvas').dataset.old = '1'")
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(look)

    wait_for(page, "!document.querySelector('.plot canvas[data-old]')")
    assert (light, dark) == ("rgb(245, 246, 248)", "rgb(18, 21, 26)")


def test_a_console_outlives_tokens_and_servers(watched, store, tmp_path_factory):
    """They come and go, as the server itself does."""

    def enter(token):
        page.get_by_role("textbox", name="Token").fill(token)
        page.keyboard.press("Enter")

    home = Home(tmp_path_factory.mktemp("secured"))
    first = Server(home, store, settings={"token_authorization": "always", "load_models": "steady.mar"})
    with serving(first):
        page = watched.open(first)
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        assert page.locator("#models li").count() == 0
        enter("wrong")
        dialog.get_by_text("The token is not valid, or no longer.").wait_for()
        enter(first.tokens()["management"])
        page.wait_for_selector("#status[data-state=live]")
        select(page, "steady")
        unfold(page, "Try a request").get_by_label("Body").fill("my text")
        renewal = {"Authorization": f"Bearer {first.tokens()['API']}"}
        assert first.management.get("/token?type=management", headers=renewal).status_code == 200
        dialog.wait_for()
        assert page.get_by_label("Body").input_value() == "my text"
        enter(first.tokens()["management"])
        page.wait_for_selector("#status[data-state=live]")
    page.wait_for_selector("#status[data-state=gone]")
    settings = {**first.settings, "load_models": "steady.mar,broken.mar"}
    with serving(Server(home, store, settings=settings)) as second:
        dialog.wait_for()
        enter(second.tokens()["management"])
        page.wait_for_selector("#status[data-state=live]")
        page.get_by_role("button", name="broken").wait_for()
        assert page.get_by_label("Body").input_value() == "my text"
        assert page.evaluate("document.cookie + localStorage.length + sessionStorage.length") == "00"


@pytest.mark.parametrize("side", ["inference", "management", "metrics"])
def test_names_on_the_documentation_are_not_broken(watched, server, side):
    watched.page.set_viewport_size({"width": 400, "height": 900})
    watched.page.goto(f"{server.settings[f'{side}_address']}/docs")
    lines = watched.page.evaluate(
        """() => {
            document.querySelectorAll("details").forEach(each => { each.open = true; });
            const names = [...document.querySelectorAll("td:first-child code")];
            return Object.fromEntries(names.map(each => [each.textContent, each.getClientRects().length]));
        }"""
    )

    assert [name for name, count in lines.items() if count != 1] == []
    assert side == "metrics" or {"inference": "model_name", "management": "initial_workers"}[side] in lines


def test_all_models_are_seen_first(watched, server):
    """In one table, trouble on top, without the code of plots; a name leads to its page, and back."""
    sizes = []
    watched.page.on("requestfinished", lambda each: sizes.append(each.sizes()["responseBodySize"]))
    page = watched.open(server)
    table = page.get_by_role("table", name="All models")
    table.get_by_role("link", name="steady").wait_for()
    names = table.locator("tbody th a").all_inner_texts()
    loaded = sum(sizes)
    page.get_by_label("Filter by name").fill("STEA")
    table.get_by_role("link", name="broken").wait_for(state="detached")
    cells = table.locator("tbody tr td").all_inner_texts()
    page.get_by_text("1 of ").wait_for()
    table.get_by_role("link", name="steady").click()
    page.get_by_role("heading", name="steady 1.0").wait_for()
    page.locator(".plot canvas").first.wait_for()
    page.get_by_role("button", name="All models").click()
    page.get_by_label("Filter by name").wait_for()

    assert names[0] == "broken"
    assert {"broken", "steady", EVIL} <= set(names)
    assert (cells[0], cells[5]) == ("ready", "0")
    assert page.evaluate("typeof hacked") == "undefined"
    assert 20_000 < loaded <= 100_000


def test_a_phone_shows_what_matters_first(watched, server):
    """The table is as wide as the screen, and the first plot of a model within it."""
    watched.page.set_viewport_size({"width": 390, "height": 844})
    page = watched.open(server)
    page.get_by_role("link", name="steady").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("link", name="steady").click()
    page.locator(".plot canvas").first.wait_for()

    box = page.locator(".plot").first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 844
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_thousand_models_are_sorted_by_trouble(page):
    """Rows do not move while one of them has the focus. The table has a hundred, and more when asked."""
    result = page.evaluate(
        """import("/console/static/overview.js").then(({ Brief, Overview, rowOf }) => {
          const versions = new Map();
          for (let number = 0; number < 1000; number += 1) {
            const brief = new Brief();
            brief.add(1, [0, 0, 0, 0, null, null]);
            brief.add(2, [4, 0, number === 7 ? 2 : 0, number === 8 ? 3 : 0, 5, 9]);
            const state = number === 9 ? "failed" : "ready";
            const row = rowOf([`m${number}`, "1.0", state, true, 1, 1, 0, "cpu", null]);
            versions.set(`m${number}/1.0`, { brief, row });
          }
          const links = () => [...view.body.querySelectorAll("a")];
          const names = () => links().slice(0, 4).map((each) => each.textContent);
          const view = new Overview(versions, () => {});
          view.update();
          const first = names();
          view.update();
          document.body.append(view.table);
          view.body.querySelector("a").focus();
          versions.get("m5/1.0").row.state = "failing";
          view.update();
          const focused = names();
          document.activeElement.blur();
          view.update();
          const after = names();
          const page = links().length;
          const more = view.more.textContent;
          view.more.click();
          const pages = links().length;
          view.name.value = "m99";
          view.name.dispatchEvent(new Event("input"));
          const chosen = links().map((each) => each.textContent);
          view.table.remove();
          const { rate, p99 } = versions.get("m7/1.0").brief;
          return { first, focused, after, rate, p99, page, more, pages, chosen,
            sum: view.sum.textContent, hidden: view.more.hidden };
        })"""
    )

    assert result["first"] == result["focused"] == ["m9", "m7", "m8", "m0"]
    assert result["after"][:2] == ["m5", "m9"]
    assert (result["rate"], result["p99"]) == (4, 9)
    assert (result["page"], result["more"], result["pages"]) == (100, "Show 100 more of 900", 200)
    assert result["chosen"] == ["m99", *(f"m{number}" for number in range(990, 1000))]
    assert (result["sum"], result["hidden"]) == ("11 of 1000, 3 with trouble", True)


def test_history_is_there_before_the_page(watched, server):
    """Of a model, and of all, by minute; a part of it can be dragged over. Idle minutes are at zero."""
    for _ in range(20):
        server.inference.post("/predictions/steady", content=b"x")
    page = watched.open(server)
    page.get_by_role("link", name="steady").click()
    ranges = page.get_by_role("group", name="Range of the plots")
    page.locator(".plot canvas").first.wait_for()
    wait_until(
        lambda: server.management.get("/console/history?seconds=900").json()["ages"], "a minute under way"
    )
    ranges.get_by_role("button", name="15 min").click()
    ranges.get_by_text("A point a minute").wait_for()
    values = "[...document.querySelectorAll('.plot .key b')]"
    wait_for(page, f"{values}.some((each) => /[1-9]/.test(each.textContent))")
    box = page.locator(".plot .u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 40, steps=4)
    page.mouse.up()
    ranges.get_by_role("button", name="Whole range").click()
    ranges.get_by_role("button", name="Whole range").wait_for(state="hidden")
    ranges.get_by_role("button", name="Live").click()
    pressed = ranges.locator("[aria-pressed=true]").all_inner_texts()
    page.get_by_role("button", name="All models").click()
    page.get_by_text("History of all models").click()
    page.get_by_text("A point a minute").wait_for()
    page.get_by_role("button", name="24 h").click()
    page.locator("details .plot canvas").first.wait_for()

    assert pressed == ["Live"]


def test_minutes_without_requests_are_at_zero(page):
    """Before the first, between two, and after the last, from the server's start on."""
    times = page.evaluate(
        """import("/console/static/ranges.js").then(({ Minutes }) => {
          const answer = { age: 1000, ages: [720, 300, 240], series: { rate: [1, 2, 3], p50: [5, 6, 7] } };
          const { times, series } = new Minutes(answer, 900, 10_000);
          const none = new Minutes({ age: 100, ages: [], series: { rate: [] } }, 900, 10_000);
          return { times, rate: series.rate, p50: series.p50, none: [none.times, none.series.rate] };
        })"""
    )

    assert times["times"] == [9100, 9220, 9280, 9340, 9640, 9700, 9760, 9820, 10000]
    assert times["rate"] == [0, 0, 1, 0, 0, 2, 3, 0, 0]
    assert times["p50"] == [None, None, 5, None, None, 6, 7, None, None]
    assert times["none"] == [[9900, 10000], [0, 0]]
