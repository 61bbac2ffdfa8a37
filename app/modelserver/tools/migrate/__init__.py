"""``modelserver migrate``: proves with an installation's own requests what changes with modelserver."""
