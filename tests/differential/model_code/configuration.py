"""Answers with the configuration that it was given."""

import json


def handle(data, context):
    """Says what the author wrote."""
    return None if data is None else [json.dumps(context.model_yaml_config, sort_keys=True)] * len(data)
