import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.ext.grpc.calling import FakeCall

from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.server import NAMES, ReflectionService

_OURS = "inference.GRPCInferenceService"


@pytest.fixture(params=NAMES, ids=lambda name: name.split(".")[2])
def name(request):
    """The service, in each version of its protocol."""
    return request.param


async def ask(name, **query):
    request = message(f"{name.rpartition('.')[0]}.ServerReflectionRequest")(host="here", **query)

    async def requests():
        yield request

    service = ReflectionService(name, {_OURS, "a.B"})
    assert set(service.methods) == {"ServerReflectionInfo"}
    (answer,) = [each async for each in service.respond(requests(), FakeCall())]
    assert (answer.valid_host, answer.original_request) == ("here", request)
    return answer


def files(answer):
    response = answer.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(each).name for each in response]


async def test_symbols_come_with_services_and_imports(name):
    answer = await ask(name, list_services="")

    assert [each.name for each in answer.list_services_response.service] == ["a.B", _OURS]

    answer = await ask(name, all_extension_numbers_of_type="inference.ModelInferRequest")

    response = answer.all_extension_numbers_response
    assert (response.base_type_name, list(response.extension_number)) == ("inference.ModelInferRequest", [])

    result = files(
        await ask(name, file_containing_symbol="org.pytorch.serve.grpc.inference.InferenceAPIsService")
    )

    assert "google/protobuf/empty.proto" in result
    assert len(result) == len(set(result))


@pytest.mark.parametrize(
    "symbol", [_OURS, f"{_OURS}.ModelInfer", "inference.ModelInferRequest", "inference.ModelInferRequest.id"]
)
async def test_symbol_leads_to_its_file(name, symbol):
    first, *_ = files(await ask(name, file_containing_symbol=symbol))
    assert files(await ask(name, file_by_filename=first))[0] == first
    assert first.startswith("open_inference")


@pytest.mark.parametrize(
    "query",
    [
        {"file_by_filename": "none.proto"},
        {"file_containing_symbol": "no.such.Thing"},
        {"all_extension_numbers_of_type": "no.such.Thing"},
        {"file_containing_extension": {"containing_type": "a.B", "extension_number": 1}},
        {},
    ],
    ids=lambda query: next(iter(query), "nothing"),
)
async def test_unknown_name_is_refused(name, query):
    error = (await ask(name, **query)).error_response
    assert (error.error_code, error.error_message) == (5, "not found")
