"""Needs a module that is nowhere."""

import surely_not_installed


def handle(data, context):
    return surely_not_installed.run(data)
