"""Clients that send marked requests while something happens to a server."""

from __future__ import annotations

import collections
import http.client
import threading
from collections.abc import Callable

from tests.e2e.serving import Server, wait_until

# Takes a while for each batch, and answers what was sent.
SLOW_ECHO = """
import time

def handle(data, context):
    time.sleep(0.04)
    return data and [bytes(row["body"]) for row in data]
"""


def is_echo(model: str, mark: str, text: str) -> bool:
    return text == mark


def is_witness(model: str, mark: str, text: str) -> bool:
    return text.split("|")[:2] == [model, mark]


class Load:
    """Clients that send to a model, each with a connection of its own, until the block ends.

    ``statuses`` counts the answers, ``errors`` are the texts of those that are not 200; ``wrong`` are marks
    with what came instead of an answer of their own: a text, or the exception of a connection that broke.
    ``pause``: seconds between a client's requests.
    """

    def __init__(
        self,
        server: Server,
        model: str,
        clients: int = 6,
        is_own: Callable[[str, str, str], bool] = is_witness,
        pause: float = 0.0,
    ) -> None:
        self.statuses: collections.Counter[int] = collections.Counter()
        self.wrong: list[tuple[str, str | Exception]] = []
        self.errors: set[str] = set()
        self._port, self._model, self._is_own, self._pause = server.port, model, is_own, pause
        self._ended = threading.Event()
        self._clients = [threading.Thread(target=self._send, args=(number,)) for number in range(clients)]

    def _send(self, client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=90)
        number = 0
        while not self._ended.wait(self._pause):
            number += 1
            mark = f"{client}-{number}"
            try:
                connection.request("POST", f"/predictions/{self._model}", mark.encode())
                answer = connection.getresponse()
                text = answer.read().decode()
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append((mark, error))
                connection.close()
                continue
            self.statuses[answer.status] += 1
            if answer.status == 200:
                if not self._is_own(self._model, mark, text):
                    self.wrong.append((mark, text))
                continue
            self.errors.add(text)
            if answer.status == 503 and answer.getheader("Retry-After") is None:
                self.wrong.append((mark, "without Retry-After"))
            self._ended.wait(0.02)
        connection.close()

    def more(self, count: int = 100) -> None:
        """Returns when so many more have been answered with 200."""
        enough = self.statuses[200] + count
        wait_until(lambda: self.statuses[200] >= enough, "requests are answered", 90)

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for client in self._clients:
            client.join()
