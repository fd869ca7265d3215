"""Reads the fields of a request from one of its sources: tensors, `sampling_parameters` or request parameters."""

from collections.abc import Callable, Mapping
from typing import Any

from inflight import InvalidRequest
from serving import fields, names, values

_READERS: dict[fields.Kind, Callable[[str, Any], Any]] = {
    fields.TEXT: values.text,
    fields.NAME: names.name,
    fields.TEXTS: values.texts,
    fields.WORDS: values.words,
    fields.FILES: values.files,
    fields.INTEGER: values.integer,
    fields.LOGPROBS: values.logprobs,
    fields.INTEGERS: values.integers,
    fields.SEED: values.seed,
    fields.NUMBER: values.number,
    fields.EMBEDS: values.matrix,
    fields.HALF_EMBEDS: values.matrix,
    fields.TRUTH: values.truth,
    fields.WHICH_RESPONSES: values.which_responses,
    fields.PROMPT_PARTS: values.prompt_parts,
    fields.EARLY_STOPPING: values.early_stopping,
    fields.JSON_LIST: values.json_list,
    fields.JSON_OBJECT: values.json_object,
    fields.TOKEN_LISTS: values.token_lists,
    fields.TOKEN_WEIGHTS: values.token_weights,
    fields.MICROSECONDS: values.integer,
    fields.DOCUMENT: values.document,
    fields.HEADER: values.text,
    fields.SIDE: values.side,
}

_BY_NAME = {name: field for field in fields.FIELDS for name in field.names}
KNOWN = frozenset(_BY_NAME)
"""Every name that a client may use for a field."""


def read_fields(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that one source of a request holds, under their own names. Null and an empty name count as not
    given.

    Raises:
        InvalidRequest: a value is invalid, or a field is given under two of its names.
    """
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for spelling, value in source.items():
        field = _BY_NAME.get(spelling)
        if field is None or value is None or (field.kind is fields.NAME and value in ("", b"")):
            continue
        if field.name in spelled:
            raise InvalidRequest(f"{spelled[field.name]} and {spelling} are two names of one field; give one of them")
        spelled[field.name] = spelling
        found[field.name] = _READERS[field.kind](spelling, value)
    return found
