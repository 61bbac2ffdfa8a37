"""The console in a real browser, in front of a server with more models than it shows at once."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.browsing import wait_for
from tests.e2e.serving import Home, Server, serving, wait_until

pytestmark = pytest.mark.slow

MODELS = 250


@pytest.fixture(scope="module")
def crowded(tmp_path_factory, model_store):
    """Models on demand, none with a worker, one of which cannot be loaded, and one that works."""
    with serving(Server(Home(tmp_path_factory.mktemp("many")), model_store)) as server:

        def register(number):
            server.registered(
                "witness.mar", model_name=f"shop-{number}", load="on-demand", initial_workers=None
            )

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(register, range(MODELS - 2)))
        server.registered("witness.mar", model_name="awake")
        server.register("missing_module.mar", model_name="fails", synchronous=False)
        wait_until(lambda: server.describe("fails")["workers"][0]["status"] == "FAILED", "it fails")
        yield server


def first_event(server):
    text = b""
    with server.management.stream("GET", "/console/events") as response:
        for piece in response.iter_raw():
            text += piece
            if text.endswith(b"\n\n"):
                return text
    raise AssertionError("the stream has ended")


def test_the_first_message_is_small(crowded):
    """It has what the table shows of each; facts come of the version whose page is opened."""
    text = first_event(crowded)
    event = json.loads(text.removeprefix(b"data: "))
    opened = crowded.management.put("/console/opened", params={"version": "awake/1.0"}).json()

    assert len(text) <= 300 * MODELS
    assert len(event["rows"]) == len(event["figures"]) == MODELS
    assert (event["facts"], list(opened["facts"])) == ({}, ["awake/1.0"])


def test_the_table_is_usable(watched, crowded):
    """Trouble is on top, letters filter names, the list stays short; models beyond it are counted."""
    page = watched.open(crowded)
    table = page.get_by_role("table", name="All models")
    page.get_by_text(f"{MODELS} of {MODELS}, 1 with trouble").wait_for()
    names = table.locator("tbody th a").all_inner_texts()
    listed = page.locator("#models li").count()
    page.get_by_role("button", name=f"Show 100 more of {MODELS - 100}").click()
    wait_for(page, "document.querySelectorAll('.overview tbody tr').length === 200")
    page.get_by_label("Filter by name").fill("shop-24")
    page.get_by_text(f"9 of {MODELS}").wait_for()
    matching = table.locator("tbody th a").all_inner_texts()
    cells = table.locator("tbody tr").first.locator("td").all_inner_texts()
    table.get_by_role("link", name="shop-247").click()
    page.get_by_role("heading", name="shop-247 1.0").wait_for()
    page.locator(".title-row .state[data-state=parked]").wait_for()
    page.locator("#models [aria-current]", has_text="shop-247").wait_for()
    crowded.unregister("shop-247")
    page.get_by_role("alert").filter(has_text="shop-247 1.0 was removed at ").wait_for()
    page.get_by_role("button", name="All models").click()
    page.get_by_text(f"{MODELS - 1} of {MODELS - 1}").wait_for()
    page.get_by_role("button", name="Devices").click()
    page.get_by_text(f"{MODELS - 3} parked.").wait_for()

    assert names[:2] == ["fails", "awake"]
    assert (len(names), listed) == (100, 50)
    assert matching == ["shop-24", *(f"shop-{number}" for number in range(240, 248))]
    assert (cells[0], cells[6]) == ("parked", "0 of 0")
