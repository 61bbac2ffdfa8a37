"""What the clients of KServe's SDK get from a server, as JSON on standard output.

A program: the SDK cannot be in one process with Triton's client, as both define messages of the same names.

    python kserve_calls.py http://127.0.0.1:8080 127.0.0.1:7070
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

VALUES = {
    "FP32": numpy.array([[1, 2], [3, 4]], "f4"),
    "INT64": numpy.array([[1 << 53], [-(1 << 62)]], "i8"),
    "BOOL": numpy.array([[True], [False]]),
    "BYTES": numpy.array([["a"], ["ü"]], object),
    "FP16": numpy.array([[0.5], [-2]], "f2"),
}
INSTANCES = {"instances": [1, "two"]}


def request(model: str, datatype: str, *, binary: bool, rows: int = 2) -> InferRequest:
    """A request with one input, as users of the SDK make it; the response is binary if the input is."""
    values = VALUES[datatype][:rows]
    tensor = InferInput("x", list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    parameters = {"binary_data_output": True} if binary else None
    return InferRequest(model, [tensor], request_id="7", parameters=parameters)


def fields_of(answer: Any) -> dict[str, Any]:
    (output,) = answer.outputs
    values = output.as_numpy().reshape(-1).tolist()
    return {
        "id": answer.id,
        "model": answer.model_name,
        "name": output.name,
        "datatype": output.datatype,
        "values": [value.decode() if isinstance(value, bytes) else value for value in values],
    }


async def failure(call: Awaitable[Any]) -> str:
    try:
        await call
    except httpx.HTTPStatusError as error:
        return f"{error.response.status_code} {error}"
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"
    return "it did not fail"


async def v1(url: str) -> dict[str, Any]:
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        batched: dict[str, str] = {}
        return {
            "live": await client.is_server_live(url),
            "ready": await client.is_model_ready(url, "rows"),
            "unready": await client.is_model_ready(url, "idle"),
            "answer": await client.infer(url, INSTANCES, model_name="rows", response_headers=batched),
            "explained": await client.explain(url, "rows", INSTANCES),
            "batch": batched["x-batch-id"],
            "unknown": await failure(client.infer(url, INSTANCES, model_name="nobody")),
            "wrong": await failure(client.infer(url, {}, model_name="rows")),
        }


async def v2(url: str) -> dict[str, Any]:
    """The REST client with protocol v2; its FP16 is binary only."""
    forms = [(datatype, binary) for datatype in VALUES for binary in (True, False)]
    forms.remove(("FP16", False))
    empty = request("mirror", "FP32", binary=True, rows=0)
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        unknown = request("nobody", "FP32", binary=False)
        wrong = request("mirror", "FP32", binary=False)
        wrong.inputs[0].shape = [3, 3]
        return {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "models": [await client.is_model_ready(url, name) for name in ("mirror", "idle", "nobody")],
            "answers": [
                fields_of(
                    await client.infer(url, request("mirror", datatype, binary=binary), model_name="mirror")
                )
                for datatype, binary in forms
            ],
            "empty": fields_of(await client.infer(url, empty, model_name="mirror")),
            "unknown": await failure(client.infer(url, unknown, model_name="nobody")),
            "wrong": await failure(client.infer(url, wrong, model_name="mirror")),
        }


async def v2_grpc(address: str) -> dict[str, Any]:
    """The gRPC client; two requests at once, of different sizes."""
    forms = [(datatype, binary) for datatype in VALUES for binary in (True, False)]
    forms.remove(("FP16", False))
    async with InferenceGRPCClient(address) as client:
        wrong = request("mirror", "FP32", binary=True)
        wrong.inputs[0].shape = [3, 3]
        pair = await asyncio.gather(
            *(client.infer(request("pair", "FP32", binary=True, rows=rows)) for rows in (1, 2))
        )
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "models": [await client.is_model_ready(name) for name in ("mirror", "idle")],
            "answers": [
                fields_of(await client.infer(request("mirror", datatype, binary=binary)))
                for datatype, binary in forms
            ],
            "batches": [answer.parameters["batchId"].string_param for answer in pair],
            "unknown": await failure(client.infer(request("nobody", "FP32", binary=True))),
            "unready": await failure(client.infer(request("idle", "FP32", binary=True))),
            "wrong": await failure(client.infer(wrong)),
        }


async def everything(url: str, address: str) -> dict[str, Any]:
    return {"v1": await v1(url), "v2": await v2(url), "grpc": await v2_grpc(address)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(everything(sys.argv[1], sys.argv[2]))))
