"""``modelserver record`` and ``modelserver replay``: traffic of one server, kept and sent again."""
