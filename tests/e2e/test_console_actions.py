"""What an operator can do in the console, in a real browser, in front of real servers."""

import json
import os
import re
import shlex
import shutil
import subprocess
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from tests import recorded_nvml
from tests.e2e.browsing import unfold, wait_for
from tests.e2e.serving import ROOT, Home, Server, archived, serving

pytestmark = pytest.mark.slow  # a browser

# A name that would end a string in a script, an attribute or a shell.
EVIL = """it's "$(exit 7)" <img src=x onerror=hacked=1>"""
STEADY = """
def handle(data, context):
    return None if data is None else ["served" for _ in data]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One with two versions of a model of an evil name, and a store that has two more models."""
    store = tmp_path_factory.mktemp("store")
    archived(store, "stored", STEADY)
    for version in ("1.0", "2.0"):
        archived(store, f"steady-{version}", STEADY, version)
    archived(store, "spare", STEADY)
    with serving(Server(Home(tmp_path_factory.mktemp("open")), store)) as started:
        for version in ("1.0", "2.0"):
            started.registered(f"steady-{version}.mar", model_name=EVIL)
        started.registered("spare.mar", model_name="seldom", load="on-demand")
        yield started


def show(page, name, version="1.0"):
    page.locator("#models button").filter(has_text=name).filter(has_text=version).click()
    page.get_by_role("heading", name=f"{name} {version}").wait_for()


def act(page, button):
    """The dialog that this button opens."""
    page.get_by_role("button", name=button).click()
    dialog = page.locator("dialog.action")
    dialog.wait_for()
    return dialog


def command_of(dialog):
    return dialog.get_by_label("The same as a command").inner_text()


def confirm(dialog, status):
    """The body of the answer to what the dialog sends."""
    dialog.locator("button[type=submit]").click()
    dialog.locator(".result", has_text=status).wait_for()
    return dialog.get_by_label("The server's answer").inner_text()


def close(dialog):
    dialog.get_by_role("button", name=re.compile("Close|Cancel")).click()
    dialog.wait_for(state="detached")


def run(command, token=""):
    environment = {**os.environ, "TOKEN": token}
    shell = ["bash", "-c", f"{command} -sS"]
    return subprocess.run(shell, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_dialog_scales_and_restarts_workers(page, server):
    """The command does the same as the dialog, whatever the name; without a confirmation nothing happens."""
    show(page, EVIL)
    path = f"{quote(EVIL)}/1.0"
    dialog = act(page, "Scale…")
    dialog.get_by_label("Most workers").fill("")
    assert dialog.locator("button[type=submit]").is_disabled()
    for label in ("Fewest workers", "Most workers"):
        dialog.get_by_label(label).fill("2")
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert len(server.describe(path)["workers"]) == 1
    dialog = act(page, "Scale…")
    for label in ("Fewest workers", "Most workers"):
        dialog.get_by_label(label).fill("2")
    command, answer = command_of(dialog), confirm(dialog, "200 OK")
    close(dialog)
    pids = {worker["pid"] for worker in server.describe(path)["workers"]}
    dialog = act(page, "Restart workers…")
    restarted, again = confirm(dialog, "200 OK"), command_of(dialog)
    close(dialog)
    after = {worker["pid"] for worker in server.describe(path)["workers"]}

    assert answer == run(command)
    assert json.loads(answer)["status"] == f"Workers scaled to 2 for model: {EVIL}, version: 1.0"
    assert "2 workers are restarted" in restarted
    assert (len(pids), len(after), pids & after) == (2, 2, set())
    assert "2 workers are restarted" in run(again)
    assert shlex.split(command)[:3] == ["curl", "-X", "PUT"]
    assert shlex.split(command)[3].startswith(f"{server.settings['management_address']}/models/it's")
    assert page.evaluate("typeof hacked") == "undefined"


def test_dialogs_change_versions_and_traffic(page, server):
    """Weights are divided, taken back, and the default changes to and fro."""
    traffic = f"/models/{quote(EVIL)}/traffic"
    show(page, EVIL, "2.0")
    dialog = act(page, "Traffic weights…")
    dialog.get_by_label("1.0").fill("90")
    assert dialog.locator("button[type=submit]").is_disabled()
    dialog.get_by_label("2.0").fill("10")
    weighed, command = confirm(dialog, "200 OK"), command_of(dialog)
    close(dialog)
    assert server.management.get(traffic).json()["weights"] == {"1.0": 90, "2.0": 10}
    assert json.loads(weighed)["weights"] == json.loads(run(command))["weights"]
    dialog = act(page, "Back to the last version…")
    assert command_of(dialog).startswith("curl -X DELETE ")
    confirm(dialog, "200 OK")
    close(dialog)
    assert "weights" not in server.management.get(traffic).json()
    dialog = act(page, "Make it the default…")
    confirm(dialog, "200 OK")
    close(dialog)
    assert server.management.get(traffic).json()["default"] == "2.0"
    page.get_by_role("button", name="Make it the default…").wait_for(state="hidden")
    dialog = act(page, "Back to the last version…")
    assert command_of(dialog).endswith("/1.0/set-default'")
    confirm(dialog, "200 OK")
    close(dialog)
    assert server.management.get(traffic).json()["default"] == "1.0"


def test_models_on_demand_are_loaded_and_parked(page, server):
    """Models that are not have no such buttons, and one without other versions cannot go back."""
    show(page, EVIL)
    assert not page.get_by_role("button", name="Park…").is_visible()
    show(page, "seldom")
    for action, state in (("Load…", "loaded"), ("Park…", "parked")):
        dialog = act(page, action)
        assert "is " + state in confirm(dialog, "200 OK")
        close(dialog)
        assert server.describe("seldom")["parking"]["state"] == state
    page.get_by_role("button", name="Back to the last version…").click()
    page.get_by_text("seldom has no other version.").wait_for()


def test_models_are_registered_and_removed(page, server):
    """From the store, by a URL, and refused ones: with the answer as the server gave it."""
    dialog = act(page, "Register a model…")
    dialog.get_by_label("Model", exact=True).select_option("stored")
    assert "v2/repository/models/stored/load" in command_of(dialog)
    confirm(dialog, "200 OK")
    close(dialog)
    name = "another's \"<b>name"
    dialog = act(page, "Register a model…")
    dialog.get_by_label("From").select_option("url")
    assert dialog.locator("button[type=submit]").is_disabled()
    dialog.get_by_label("URL or file").fill("spare.mar")
    dialog.get_by_label("Name").fill(name)
    command = command_of(dialog)
    assert "registered with 1 initial workers" in confirm(dialog, "200 OK")
    close(dialog)
    assert server.describe(quote(name))["modelUrl"] == "spare.mar"
    dialog = act(page, "Register a model…")
    dialog.get_by_label("From").select_option("hub")
    dialog.get_by_label("Model of the hub").fill("nobody/$(exit 7)")
    hub = command_of(dialog)
    refused = confirm(dialog, "404 Not Found")
    assert dialog.locator("button[type=submit]").is_enabled()
    close(dialog)
    show(page, name)
    dialog = act(page, "Remove…")
    removing = command_of(dialog)
    assert "unregistered" in confirm(dialog, "200 OK")
    page.get_by_text("was removed at").wait_for()
    close(dialog)

    assert refused == run(hub)
    assert json.loads(refused)["code"] == 404
    assert parse_qs(urlsplit(shlex.split(hub)[3]).query)["url"] == ["hf://nobody/$(exit 7)"]
    assert json.loads(run(removing))["code"] == 404
    assert "registered with 1 initial workers" in run(command)
    server.unregister(quote(name))
    show(page, EVIL)
    assert json.loads(confirm(act(page, "Remove…"), "403 Forbidden"))["code"] == 403


def test_a_token_that_ends_while_a_dialog_is_open(watched, start_server, model_store):
    """The page says so, asks for another one, and goes on; the command never has it."""
    server = start_server(token_authorization="always", load_models="echo.mar")
    page = watched.open(server)
    enter(page, old := server.tokens()["management"])
    show(page, "echo")
    dialog = act(page, "Restart workers…")
    renewal = {"Authorization": f"Bearer {server.tokens()['API']}"}
    assert server.management.get("/token?type=management", headers=renewal).status_code == 200
    page.get_by_text("The token is not valid, or no longer.").wait_for()
    page.locator("#token-cancel").click()
    dialog.locator("button[type=submit]").click()
    enter(page, new := server.tokens()["management"])
    dialog.locator(".result", has_text="200 OK").wait_for()
    command = command_of(dialog)
    page.wait_for_selector("#status[data-state=live]")

    assert "2 workers are restarted" in dialog.get_by_label("The server's answer").inner_text()
    assert '-H "Authorization: Bearer $TOKEN"' in command
    assert old not in page.content()
    assert new not in page.content()
    assert "2 workers are restarted" in run(command, new)


def enter(page, token):
    page.get_by_role("textbox", name="Token").fill(token)
    page.keyboard.press("Enter")


def test_forms_open_by_keyboard_and_fit_a_phone(page):
    """They are folded, below the plots, and stay open on the next model's page. A dialog gives focus back."""
    page.set_viewport_size({"width": 390, "height": 844})
    width = "document.documentElement.scrollWidth"
    page.get_by_role("link", name="seldom").click()
    page.locator(".plot canvas").first.wait_for()
    titles = page.locator(".fold h3").all_inner_texts()
    assert page.locator("details[open]").count() == 0
    tops = [page.locator(place).first.bounding_box() for place in (".plot", ".fold")]
    assert tops[0] is not None
    assert tops[1] is not None
    assert tops[0]["y"] < tops[1]["y"]
    form = page.get_by_role("region", name="Settings of this version")
    form.locator("summary").focus()
    page.keyboard.press("Enter")
    form.get_by_label("Batch size").wait_for()
    page.get_by_role("button", name="All models").click()
    page.get_by_role("link", name=EVIL).first.click()
    page.get_by_role("heading", name=f"{EVIL} ").wait_for()
    assert form.get_by_label("Batch size").is_visible()
    for title in titles:
        if page.get_by_role("region", name=title).is_visible():
            unfold(page, title)
    assert page.evaluate(width) <= 390
    button = page.get_by_role("button", name="Scale…")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog.action")
    dialog.wait_for()
    box = dialog.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.querySelector('dialog.action').contains(document.activeElement)")
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert button.evaluate("(each) => each === document.activeElement")


def test_devices_with_gpus_and_front_ends(watched, start_server, tmp_path):
    """The GPUs of a recorded driver with their workers; one that cannot be read says so. Read while open."""
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copy(recorded_nvml.__file__, folder / "pynvml.py")
    roots = os.pathsep.join(map(str, (folder, ROOT / "app", ROOT / "handlers")))
    store = tmp_path / "store"
    archived(store, "steady", STEADY)
    server = start_server(environment={"PYTHONPATH": roots}, model_store=store, frontend_processes=2)
    server.registered("steady.mar", model_name=EVIL, initial_workers=2)
    server.registered("steady.mar", model_name="asleep", load="on-demand", initial_workers=None)
    page = watched.open(server)
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Devices").click()
    machine, first, second = (
        page.get_by_role("region", name=name) for name in ("This machine", "GPU 0", "GPU 1")
    )
    first.get_by_text("3072 MiB of 8192 MiB").wait_for()
    front_ends = page.get_by_role("table", name="Front ends").locator("tbody tr")
    front_ends.nth(1).wait_for()
    busy = first.get_by_role("meter", name="Use").evaluate("(each) => each.value")
    reads = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/devices')).length"
    wait_for(page, f"{reads} >= 2")
    pids = {cells[1] for cells in (row.locator("td").all_inner_texts() for row in front_ends.all())}

    assert busy == 7
    for gpu in (first, second):
        assert EVIL in gpu.get_by_role("table", name="Workers on GPU").inner_text()
    assert second.get_by_text("The driver does not tell its state.").is_visible()
    assert machine.get_by_role("meter").count() == 3
    on_demand = page.get_by_role("region", name="Models on demand")
    assert on_demand.get_by_text("1 parked.", exact=True).is_visible()
    assert on_demand.get_by_role("meter").evaluate("(each) => each.value") == 0
    listed = server.management.get("/frontends").json()["frontEnds"]
    assert pids == {str(each["pid"]) for each in listed}
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="All models").click()
    page.get_by_role("link", name=EVIL).wait_for()
    before = page.evaluate(reads)
    page.evaluate("window.since = performance.now()")
    wait_for(page, "performance.now() - window.since > 5000")
    assert page.evaluate(reads) <= before + 1
    assert page.evaluate("typeof hacked") == "undefined"
