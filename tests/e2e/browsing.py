"""Pages in a real browser: Chromium without a screen, which takes a third less processor time."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.e2e.serving import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = "/usr/bin/chromium-headless-shell"
DISABLED = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in DISABLED)]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test without one."""
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium-headless-shell")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


class Watched:
    def __init__(self, browser: Browser) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: self._record_message(message.type, message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(httpx.URL(request.url).netloc.decode()))

    def _record_message(self, kind: str, text: str) -> None:
        # Some tests make the server refuse requests, or stop it.
        if kind in {"error", "warning"} and not text.startswith("Failed to load resource"):
            self.errors.append(text)

    def open(self, server: Server) -> Page:
        """Opens the console; without tokens it is live at once."""
        self.page.goto(f"{server.settings['management_address']}/console")
        return self.page

    def check(self) -> None:
        """Nothing was wrong in the page, and nothing came from elsewhere or stays in the browser."""
        assert self.errors == []
        assert len(self.hosts - {""}) == 1
        assert self.context.cookies() == []

    def close(self) -> None:
        self.context.close()


def wait_for(page: Page, expression: str) -> None:
    """Until it is true in the page, whose policy forbids that the page evaluates it."""
    wait_until(lambda: page.evaluate(expression), expression)


def select(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()
    page.get_by_role("heading", name=f"{name} 1.0").wait_for()


def unfold(page: Page, title: str) -> Locator:
    """The folded part of a model's page with this title, open."""
    part = page.get_by_role("region", name=title)
    if not part.locator("details").evaluate("(each) => each.open"):
        part.locator("summary").click()
    return part
