"""``modelserver tune``: finds settings for a model by measuring them on the machine that will serve it."""
