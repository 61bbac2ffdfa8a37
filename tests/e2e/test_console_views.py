import shutil
import subprocess
import threading

import pytest
from tests.e2e.browsing import wait_for
from tests.e2e.serving import MODEL_CODE, ROOT, Home, Server, archived, serving, wait_until, workflow

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "workflow"
AXE = "axe-core@4.14.1"
VIEWS = ("All models", "Events", "Logs", "Rollouts", "Workflows", "Devices", "Settings of the server")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A model in two versions, a workflow, and a model that does not load."""
    store, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("work")
    for number in (1, 2):
        made = archived(work, "m", MODEL_CODE / "variants.py", f"{number}.0")
        made.rename(store / f"m{number}.mar")
    for name in ("kind", "mood"):
        archived(store, name, EXAMPLE / f"{name}.py")
    workflow(store, "pets", EXAMPLE)
    (store / "broken.py").write_text('raise OSError("no disk")\n')
    home = Home(tmp_path_factory.mktemp("server"))
    with serving(Server(home, store, settings={"shadow_bodies": 30})) as started:
        for number in (1, 2):
            started.registered(f"m{number}.mar")
        started.register("broken.py", synchronous=False)
        assert started.management.post("/workflows", params={"url": "pets.war"}).status_code == 200
        yield started


def send_until(server, body, happened):
    """Sends requests until the traffic of the model is like this."""

    def has_happened():
        if happened(server.management.get("/models/m/traffic").json()):
            return True
        for _ in range(3):
            server.predict("m", body)
        return False

    wait_until(has_happened, "the traffic has changed")


def put(server, document):
    answer = server.management.put("/models/m/traffic", json=document)
    assert answer.status_code == 200, answer.text


def test_a_rollout_is_seen(page, server):
    """Its weights, what the shadow answers otherwise, and the guard's steps with their reasons."""
    page.get_by_role("button", name="Rollouts").click()
    page.get_by_text("No model divides its requests").wait_for()
    put(server, {"shadow": {"2.0": {"percent": 100}}})
    for _ in range(3):
        server.predict("m", b"own-<b>x</b>")
    rollout = page.get_by_role("region", name="m", exact=True)
    rollout.get_by_text("0% of compared answers agree (exact)").wait_for()
    differing = rollout.get_by_role("table", name="Answers of 2.0 that differ")
    differing.get_by_text("bodies of ").first.wait_for()
    rollout.get_by_role("row", name="2.0").get_by_text("100% of copies").wait_for()
    put(server, {"shadow": None, "weights": {"1.0": 50, "2.0": 50}})
    put(server, {"promote": {"after": 20, "errors": 0.01, "steps": [80, 100]}})
    send_until(server, b"x", lambda traffic: traffic["weights"]["2.0"] == 80)
    rollout.get_by_text("2.0 goes from 50 % to 80 %: ").first.wait_for()
    rollout.get_by_role("list", name="Steps", exact=True).wait_for()
    send_until(server, b"fail", lambda traffic: traffic["promotion"]["state"] == "rolled back")
    rollout.get_by_text("2.0: rolled back").wait_for()
    steps = rollout.get_by_role("list", name="Steps and changes")
    steps.get_by_text(" to 0 %: failed: ").first.wait_for()
    meters = rollout.get_by_role("meter").evaluate_all("all => all.map((each) => each.value)")
    server.management.delete("/models/m/traffic")

    assert sorted(meters) == [0, 100]


def test_a_workflow_is_one_thing(page, server):
    """With the state and figures of its nodes, and what follows each."""
    page.get_by_role("button", name="Workflows").click()
    pets = page.get_by_role("region", name="pets")
    pets.locator(".title-row .state[data-state=ready]").wait_for()
    rows = pets.get_by_role("row").filter(has=page.get_by_role("link"))
    rows.nth(3).wait_for()
    followers = {
        row.get_by_role("link").inner_text(): row.locator("td").last.inner_text() for row in rows.all()
    }
    over = threading.Event()

    def send():
        while not over.wait(0.02):
            server.inference.post("/wfpredict/pets", content=b"a lovely dog")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        cell = rows.filter(has=page.get_by_role("link", name="kind")).locator("td").nth(1)
        wait_until(lambda: "/s" in cell.inner_text(), "requests are counted")
    finally:
        over.set()
        sender.join()
    rows.get_by_role("link", name="mood").click()
    page.get_by_role("heading", name="mood").wait_for()

    assert followers == {"clean": "kind, mood", "kind": "join", "mood": "join", "join": "the answer"}


def test_views_fit_a_phone(watched, server):
    """No view is wider than the screen; the reason of a failure is seen without scrolling."""
    watched.page.set_viewport_size({"width": 390, "height": 844})
    put(server, {"weights": {"1.0": 90, "2.0": 10}, "shadow": {"2.0": {"percent": 10}}})
    page = watched.open(server)
    page.get_by_role("link", name="broken").wait_for()
    widths = {}
    for view in VIEWS:
        page.get_by_role("navigation").get_by_role("button", name=view, exact=True).click()
        page.get_by_role("heading", name=view).wait_for()
        widths[view] = page.evaluate("document.documentElement.scrollWidth")
    page.get_by_role("button", name="Rollouts").click()
    page.get_by_role("region", name="m", exact=True).wait_for()
    widths["a rollout"] = page.evaluate("document.documentElement.scrollWidth")
    server.management.delete("/models/m/traffic")
    page.get_by_role("button", name="All models").click()
    page.get_by_role("link", name="broken").click()
    reason = page.get_by_role("alert").get_by_text("no disk").first
    reason.wait_for()
    box = reason.bounding_box()
    page.get_by_role("group", name="Range of the plots").get_by_role("button", name="24 h").click()
    page.get_by_text("A point a minute").wait_for()
    widths["a model that fails"] = page.evaluate("document.documentElement.scrollWidth")

    assert box is not None
    assert box["y"] + box["height"] <= 844
    assert {view: width for view, width in widths.items() if width > 390} == {}


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The source of axe-core, which npm installs into a temporary folder."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is missing: apt-get install npm")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install {AXE}: {done.stderr[-300:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, server, axe, scheme):
    """On every view, wide and on a phone; of the dark scheme the colours, which are the same on both."""
    put(server, {"weights": {"1.0": 90, "2.0": 10}, "shadow": {"2.0": {"percent": 100}}})
    for _ in range(5):
        server.predict("m", b"other")
    options = {"resultTypes": ["violations"]}
    if scheme == "dark":
        options["runOnly"] = ["color-contrast", "link-in-text-block"]
    # The page's policy forbids what axe-core does.
    context = browser.new_context(bypass_csp=True, color_scheme=scheme)
    try:
        page = context.new_page()
        page.goto(f"{server.settings['management_address']}/console")
        page.get_by_role("link", name="broken").wait_for()
        page.add_script_tag(content=axe)
        serious = []

        def check(view):
            output = page.evaluate("(options) => axe.run(document, options)", options)
            serious.extend(
                f"{view}: {each['id']}: {each['nodes'][0]['html'][:200]}"
                for each in output["violations"]
                if each["impact"] in {"serious", "critical"}
            )

        sizes = ((1280, 900), (390, 844))
        for width, height in sizes if scheme == "light" else sizes[:1]:
            page.set_viewport_size({"width": width, "height": height})
            for view in VIEWS:
                page.get_by_role("navigation").get_by_role("button", name=view, exact=True).click()
                page.get_by_role("heading", name=view).wait_for()
                if view in {"Events", "Logs"}:
                    page.get_by_role("log").locator("time").first.wait_for()
                if view == "Rollouts":
                    page.get_by_role("region", name="m", exact=True).get_by_role("meter").first.wait_for()
                if view == "Workflows":
                    page.get_by_role("region", name="pets").wait_for()
                if view == "Devices":
                    page.get_by_text("on the processor").wait_for()
                check(f"{view} at {width}")
            page.get_by_role("button", name="All models").click()
            page.get_by_text("History of all models").click()
            page.locator("details .plot canvas").first.wait_for()
            check("history")
            page.get_by_role("link", name="broken").click()
            page.get_by_role("heading", name="broken 1.0").wait_for()
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            wait_for(page, "document.querySelectorAll('.plot canvas').length === 6")
            check("the page of a model")
            page.get_by_role("button", name="Register a model…").click()
            page.get_by_role("dialog").get_by_role("button", name="Cancel").wait_for()
            check("a dialog")
            page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
            page.get_by_role("button", name="Scale…").click()
            page.get_by_role("dialog").wait_for()
            check("a dialog")
            page.keyboard.press("Escape")
            page.get_by_role("button", name="All models").click()
    finally:
        context.close()
        server.management.delete("/models/m/traffic")

    assert serious == []
