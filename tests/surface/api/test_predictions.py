from openapi_spec_validator import validate
from tests.documents import describe_listener, operations

from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.models.options.signature import Signature
from modelserver.surface.api.predictions import describe_model


def test_answers_that_are_the_handlers_have_no_kind():
    """A handler may name no content type, so none is promised; nor for a token's empty line."""
    described = operations(describe_listener("all", "1"))

    for key in ("post /predictions/{model_name}", "put /invocations", "get /token"):
        assert "content" not in described[key]["responses"]["200"], key
    assert "content" in described["post /v1/models/{model_name}:predict"]["responses"]["200"]


def test_signature_adds_types_to_the_document():
    tensors = [("x", "FP32", (-1, 2)), ("y", "BYTES", (-1,)), ("z", "FP32", (-1, 99))]
    outputs = (TensorSpec("p", "INT64", (-1,)),)
    document = describe_model(
        "m", "2", signature=Signature(tuple(TensorSpec(*each) for each in tensors), outputs)
    )
    validate(document)
    operation = document["paths"]["/v2/models/m/versions/2/infer"]["post"]
    body = operation["requestBody"]["content"]["application/json"]
    answer = operation["responses"]["200"]["content"]["application/json"]
    inputs = body["schema"]["allOf"][1]["properties"]["inputs"]
    (output,) = answer["schema"]["allOf"][1]["properties"]["outputs"]["items"]["oneOf"]
    names = [each["allOf"][1]["properties"]["name"]["enum"] for each in inputs["items"]["oneOf"]]

    assert names == [["x"], ["y"], ["z"]]
    assert (inputs["minItems"], inputs["maxItems"]) == (3, 3)
    assert output["allOf"][1]["properties"]["datatype"]["enum"] == ["INT64"]
    assert body["example"]["inputs"] == [
        {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 1.0]},
        {"name": "y", "shape": [1], "datatype": "BYTES", "data": ["text"]},
        {"name": "z", "shape": [1, 99], "datatype": "FP32", "parameters": {"binary_data_size": 396}},
    ]
