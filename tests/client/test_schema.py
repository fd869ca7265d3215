"""An answer that must match a schema is parsed: as what JSON has, or as an object of the schema's class."""

import dataclasses
import json
import sys
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from inflight_client import Client
from scripts.launch.triton_server import TritonServer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class City(BaseModel):
    city: str


@dataclasses.dataclass
class Town:
    city: str


@pytest.mark.parametrize(
    ("schema", "expected"), [(SCHEMA, {"city": "Ulm"}), (City, City(city="Ulm")), (Town, Town("Ulm"))]
)
def test_answers_are_parsed(client: Client, schema: Any, expected: object) -> None:
    assert client.generate('{"city":"Ulm"}', schema=schema).parsed == expected
    messages: Any = [{"role": "user", "content": '{"city":"Ulm"}'}]
    assert client.chat(messages, schema=schema).choices[0].parsed == expected
    with client.stream('{"city":"Ulm"}', schema=schema) as stream:
        assert stream.completion().parsed == expected


@pytest.fixture
def one(server: TritonServer) -> Any:
    with Client(server.grpc_url) as client:
        yield client


@pytest.mark.parametrize("schema", [SCHEMA, City, Town])
def test_the_schema_reaches_the_server(one: Client, schema: Any) -> None:
    request = json.loads(one.generate("!request", schema=schema).text)
    sent = json.loads(request["sampling_parameters"])["structured_outputs"]["json"]
    assert sent["properties"]["city"]["type"] == "string"


def test_what_cannot_be_parsed_stays_text(one: Client) -> None:
    cut_off = one.generate('{"city": "Neu Ulm"}', schema=City, max_tokens=2)
    assert cut_off.text == '{"city": "Neu '
    with pytest.raises(ValueError, match="the answer is not complete: its finish reason is length"):
        cut_off.parsed  # noqa: B018
    with pytest.raises(ValidationError):
        one.generate('{"town":"Ulm"}', schema=City).parsed  # noqa: B018
    assert one.generate('{"city":"Ulm"}').parsed is None


def test_what_is_no_schema_is_refused(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for schema in (5, int, City(city="Ulm")):
        with pytest.raises(TypeError, match="it must be a JSON schema, a pydantic model or a dataclass"):
            one.generate("a", schema=schema)  # type: ignore[typeddict-item]
    with pytest.raises(TypeError, match="give either a schema or structured_outputs"):
        one.generate("a", schema=SCHEMA, structured_outputs={"regex": "a"})
    monkeypatch.setitem(sys.modules, "pydantic", None)

    @dataclasses.dataclass
    class New:
        city: str

    with pytest.raises(ImportError, match="a dataclass as schema needs pydantic: pip install"):
        one.generate("a", schema=New)
