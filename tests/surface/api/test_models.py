import json

import pytest
from openapi_schema_validator import OAS30Validator
from tests.documents import schema_of

from modelserver.errors import HandlerError
from modelserver.models.options.table import OPTIONS
from modelserver.surface.api.models import Autoscaling, ModelDescription
from modelserver.surface.http.answers import error_body


@pytest.mark.parametrize("kserve", [False, True])
@pytest.mark.parametrize("batch_id", [None, "", "b"])
@pytest.mark.parametrize("request_id", [None, "r"])
def test_error_bodies_have_the_type(kserve, batch_id, request_id):
    error = HandlerError("m", 503)
    error.request_id = request_id
    schema = schema_of("all", "Error")
    body = json.loads(error_body(error, form="kserve" if kserve else "", batch_id=batch_id)[1])

    assert set(body) <= set(schema["properties"])
    OAS30Validator(schema).validate(body)


def test_descriptions_have_all_options_with_a_field():
    """An option's row names its field, in the block ``autoscaling`` or outside of all."""
    properties = {option.described for option in OPTIONS.values() if option.described}
    fields = {f"autoscaling.{name}" for name in Autoscaling.__annotations__}

    assert properties <= {*fields, *ModelDescription.__annotations__}
