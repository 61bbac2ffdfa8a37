"""The pictures of the console in docs/pictures: ``python -m tests.e2e.console_pictures`` takes them anew.

It needs Debian's ``chromium-headless-shell``, and two minutes in which the machine does little else.
"""

import io
import math
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from tests.e2e.browsing import chromium, wait_for
from tests.e2e.serving import ROOT, Home, Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = ROOT / "docs" / "pictures"
SIZE: Any = {"width": 1280, "height": 850}
# What the plots show.
SECONDS = 75.0
SENTIMENT = """import random, time


def handle(data, context):
    if data is None:
        return None
    time.sleep(0.03 + 0.004 * len(data) + random.random() * 0.02)
    return ["good"] * len(data)
"""
OCR = """def handle(data, context):
    if data is None:
        return None
    raise ValueError("the picture has no text")
"""
MODELS = {"sentiment": SENTIMENT, "ocr": OCR, "search": SENTIMENT, "broken": 'raise OSError("no disk")\n'}


def ask(server: Server, over: threading.Event) -> None:
    """Sends requests that come and go in a wave, of ten kinds of users."""
    began = time.monotonic()
    while not over.is_set():
        server.predict("sentiment", b"What a lovely day")
        over.wait(0.08 * (1.1 + math.sin((time.monotonic() - began) / 9)))


def ask_others(server: Server, over: threading.Event) -> None:
    """Now and then of the others, one of which fails."""
    while not over.wait(0.5):
        server.predict("ocr", b"x")
        server.predict("search", b"x")


def save(picture: bytes, name: str) -> None:
    """With so few colours that it is small."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(160, kmeans=1, dither=Image.Dither.NONE)
    image.save(FOLDER / f"{name}.png", optimize=True)


def take(page: "Page", server: Server) -> None:
    page.goto(f"{server.settings['management_address']}/console")
    page.get_by_role("link", name="sentiment").click()
    page.locator(".plot canvas").first.wait_for()
    time.sleep(SECONDS)
    for scheme, name in (("light", "console"), ("dark", "console-dark")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        wait_for(page, f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        time.sleep(1)
        save(page.screenshot(), name)
    page.emulate_media(color_scheme="light")
    panel = page.get_by_role("region", name="What would happen if")
    if panel.locator("details").count():
        panel.locator("summary").click()
    panel.get_by_label("Batch size").fill("16")
    panel.get_by_role("button", name="Estimate").click()
    panel.locator("tbody tr").nth(5).wait_for()
    save(panel.screenshot(), "console-estimate")
    page.get_by_role("button", name="All models").click()
    page.locator(".overview .rate.bad").first.wait_for()
    page.set_viewport_size({"width": 1280, "height": 420})
    save(page.screenshot(), "console-models")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        store = Path(folder) / "store"
        store.mkdir()
        for name, text in MODELS.items():
            (store / f"{name}.py").write_text(text)
        with serving(Server(Home(Path(folder)), store)) as server:
            server.registered("sentiment.py", batch_size=8)
            server.registered("ocr.py")
            server.registered("search.py", load="on-demand", initial_workers=None)
            server.register("broken.py", synchronous=False)
            over = threading.Event()
            clients = [threading.Thread(target=ask, args=(server, over)) for _ in range(6)]
            clients.append(threading.Thread(target=ask_others, args=(server, over)))
            for client in clients:
                client.start()
            try:
                take(browser.new_page(viewport=SIZE), server)
            finally:
                over.set()
                for client in clients:
                    client.join()


if __name__ == "__main__":
    main()
