"""For tests of handlers: a client of a model in a real worker, without sockets."""

from modelserver.testing.answer import Answer
from modelserver.testing.local import Client, client

__all__ = ["Answer", "Client", "client"]
