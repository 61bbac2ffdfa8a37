"""A handler with a function of another name."""


def go(data, context):
    return None if data is None else [f"went {context.model_name}"] * len(data)
