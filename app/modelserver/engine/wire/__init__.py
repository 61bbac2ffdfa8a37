"""Messages between the server and its workers, and their framing."""
