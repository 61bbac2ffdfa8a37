"""Takes V1 bodies apart itself, as handlers do that were written for TorchServe."""


def handle(data, context):
    if data is None:
        return None
    return [{"predictions": [2 * number for number in row["body"]["instances"]]} for row in data]
