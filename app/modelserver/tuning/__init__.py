"""``modelserver tune``: finds the settings of a model by trying them on the machine that will serve it."""
