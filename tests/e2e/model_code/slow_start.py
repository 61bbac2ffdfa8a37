"""Takes as long to load as the environment says."""

import os
import time


def handle(data, context):
    if data is None:
        print("loading slowly", flush=True)
        time.sleep(float(os.environ.get("E2E_LOAD_SECONDS", "0.5")))
        return None
    return ["loaded"] * len(data)
