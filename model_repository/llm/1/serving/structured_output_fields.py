"""Reads a constraint on the output in each of its spellings: vLLM's, TensorRT-LLM's and OpenAI's."""

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from typing import Any

from inflight import InvalidRequest, StructuredOutputs

_KEYS = frozenset(field.name for field in fields_of(StructuredOutputs) if field.init)
# By TensorRT-LLM's `guided_decoding_guide_type`.
_GUIDES = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar", "structural_tag": "structural_tag"}


def structured_outputs(fields: Mapping[str, Any]) -> StructuredOutputs | None:
    """Return the constraint that the fields of a request ask for, or None.

    Raises:
        InvalidRequest: it is malformed, or given in two ways.
    """
    if not fields.get("guided_decoding_guide_type") and not fields.get("guided_decoding_guide"):
        # Ensembles pass on both, empty, where the client gave none.
        fields = {name: value for name, value in fields.items() if not name.startswith("guided_decoding_guide")}
    found = {name: wanted for name, read in _READERS.items() if name in fields and (wanted := read(fields)) is not None}
    if len(found) > 1:
        raise InvalidRequest(f"{' and '.join(found)} constrain the same output; give one of them")
    if "guided_decoding_guide" in fields and "guided_decoding_guide_type" not in fields:
        raise InvalidRequest("guided_decoding_guide is given without guided_decoding_guide_type")
    return next(iter(found.values()), None)


def _vllm(fields: Mapping[str, Any]) -> StructuredOutputs:
    given = fields["structured_outputs"]
    if not isinstance(given, dict):
        raise InvalidRequest(f"structured_outputs is {given!r}; it must be a JSON object")
    for key, value in given.items():
        # Triton's OpenAI frontend sends all attributes of vLLM's class. Null and false ask for nothing.
        if key not in _KEYS and value is not None and value is not False:
            raise InvalidRequest(
                f"structured_outputs has the key {key!r}; it must have only {', '.join(sorted(_KEYS))}"
            )
    return StructuredOutputs(**{key: value for key, value in given.items() if key in _KEYS})


def _openai(fields: Mapping[str, Any]) -> StructuredOutputs | None:
    given = fields["response_format"]
    if not isinstance(given, dict):
        raise InvalidRequest(f"response_format is {given!r}; it must be a JSON object")
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return StructuredOutputs(json_object=True)
        case "json_schema":
            wrapper = given.get("json_schema")
            if not isinstance(wrapper, dict) or "schema" not in wrapper:
                raise InvalidRequest("response_format.json_schema.schema is missing")
            return StructuredOutputs(json=wrapper["schema"])
        case "structural_tag":
            return StructuredOutputs(structural_tag=given)
    raise InvalidRequest(
        f"response_format.type is {given.get('type')!r}; it must be text, json_object, json_schema or structural_tag"
    )


def _tensorrt_llm(fields: Mapping[str, Any]) -> StructuredOutputs:
    kind = fields["guided_decoding_guide_type"]
    if kind == "json":
        return StructuredOutputs(json_object=True)
    if kind not in _GUIDES:
        raise InvalidRequest(f"guided_decoding_guide_type is {kind!r}; it must be json or one of {', '.join(_GUIDES)}")
    if "guided_decoding_guide" not in fields:
        raise InvalidRequest(f"guided_decoding_guide_type is {kind!r}, but guided_decoding_guide is missing")
    return StructuredOutputs(**{_GUIDES[kind]: fields["guided_decoding_guide"]})


def _older(name: str) -> Callable[[Mapping[str, Any]], StructuredOutputs]:
    kind = name.removeprefix("guided_")
    return lambda fields: StructuredOutputs(**{kind: fields[name]})


_READERS: dict[str, Callable[[Mapping[str, Any]], StructuredOutputs | None]] = {
    "structured_outputs": _vllm,
    "response_format": _openai,
    **{name: _older(name) for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar")},
    "guided_decoding_guide_type": _tensorrt_llm,
}
