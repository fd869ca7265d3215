"""The fields that give an answer a form: OpenAI's, vLLM's, its older ones, SGLang's and TGI's."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from inflight_gateway.strict import Never, Strict
from inflight_gateway.strict_json import read_json

MAX_CHOICES = 4096


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except (ValueError, RecursionError):
        raise ValueError("it must be an object, or text that holds one as JSON") from None


JsonObject = Annotated[
    dict[str, Any], BeforeValidator(_decoded), WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]})
]
"""An object, or text that holds one as JSON."""

_Written = Annotated[str, Field(min_length=1)]
_Choices = Annotated[list[_Written], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]


class NamedSchema(Strict):
    """A JSON schema with a name."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="The schema is enforced in any case.")


class ResponseFormat(Strict):
    """OpenAI's field, with vLLM's structural tags, and with two names of a schema that clients send in place of a
    `json_schema`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = Field(None, description="Only with the type json_schema.")
    value: dict[str, Any] | None = Field(None, description="As in TGI: a JSON schema. Only with the type json_object.")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="As in llama.cpp: a JSON schema. Only with the type json_object."
    )
    format: dict[str, Any] | None = Field(None, description="As in vLLM. Only with the type structural_tag.")
    structures: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(
        None, description="The older form of structural tags, with `triggers`. Only with the type structural_tag."
    )
    triggers: Annotated[list[str], Field(fail_fast=True)] | None = None


class StructuredOutputs(Strict):
    """vLLM's field. Exactly one of the first six is given."""

    json_: JsonObject | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: _Written | None = None
    choice: _Choices | None = None
    grammar: _Written | None = None
    structural_tag: JsonObject | None = None
    whitespace_pattern: _Written | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: Never | None = None


class Grammar(Strict):
    """TGI's field."""

    type: Literal["json", "regex"]
    value: dict[str, Any] | str


class GuidedFields(Strict):
    """At most one of these is given, apart from a response_format that is text."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | None = None
    guided_regex: _Written | None = None
    guided_choice: _Choices | None = None
    guided_grammar: _Written | None = None
    json_schema: JsonObject | None = Field(None, description="SGLang's name of guided_json.")
    regex: _Written | None = Field(None, description="SGLang's name of guided_regex.")
    ebnf: _Written | None = Field(None, description="SGLang's name of guided_grammar.")
    grammar: Grammar | None = Field(None, description="TGI's name of guided_json and guided_regex.")
