"""Cannot be imported."""

import a_module_that_is_not_there


def handle(data, context):
    return a_module_that_is_not_there.answers(data)
