"""Finds the form that a request asks an answer to have."""

from collections.abc import Iterator

from inflight_gateway.answer_form import KINDS, OPTIONS, AnswerForm
from inflight_gateway.errors import ApiError
from inflight_gateway.guided_fields import Grammar, GuidedFields, ResponseFormat, StructuredOutputs

# The fields that each stand for one kind of form.
_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}


def asked_form(body: GuidedFields) -> AnswerForm | None:
    """Return the form of the answers to a request; None for free text.

    Raises:
        ApiError: two fields ask for a form, or one of them contradicts itself.
    """
    first, *others = [*_forms(body), None]
    if first is not None and others[0] is not None:
        field = others[0].asked_by
        raise invalid(field, f"{field} is given with {first.asked_by}; only one of them may give the answer a form")
    return first


def _forms(body: GuidedFields) -> Iterator[AnswerForm]:
    if (form := of_response_format(body.response_format, "response_format")) is not None:
        yield form
    if body.structured_outputs is not None:
        yield _of_structured_outputs(body.structured_outputs)
    for field, kind in _FIELDS.items():
        if (value := getattr(body, field)) is not None:
            yield AnswerForm(field, kind, value)
    if body.grammar is not None:
        yield _of_grammar(body.grammar)


# The entries of a response_format, with the type that has them.
_TYPE_OF_ENTRY = {
    "json_schema": "json_schema",
    "value": "json_object",
    "schema_": "json_object",
    "format": "structural_tag",
    "structures": "structural_tag",
    "triggers": "structural_tag",
}


def of_response_format(given: ResponseFormat | None, field: str) -> AnswerForm | None:
    """Return the form that OpenAI's field asks for. Raises ApiError if its schema is missing, or of another type."""
    if given is None:
        return None
    for name, of_type in _TYPE_OF_ENTRY.items():
        if getattr(given, name) is not None and given.type != of_type:
            name = name.rstrip("_")
            raise invalid(f"{field}.{name}", f"{field}.{name} is given; the type {given.type} has none")
    match given.type:
        case "text":
            return None
        case "json_object":
            return _of_json_object(given, field)
        case "structural_tag":
            if given.format is None and given.structures is None:
                raise invalid(f"{field}.format", f"{field}.format is missing; the type structural_tag needs it")
            return AnswerForm(field, "structural_tag", given.model_dump(exclude_none=True))
    if given.json_schema is None:
        raise invalid(f"{field}.json_schema", f"{field}.json_schema is missing; the type json_schema needs it")
    return AnswerForm(field, "json", given.json_schema.schema_)


def _of_json_object(given: ResponseFormat, field: str) -> AnswerForm:
    if given.value is not None and given.schema_ is not None:
        raise invalid(f"{field}.schema", f"{field}.schema is given with {field}.value; only one of them may be given")
    schema = given.schema_ if given.value is None else given.value
    return AnswerForm(field, "json_object", True) if schema is None else AnswerForm(field, "json", schema)


def _of_structured_outputs(given: StructuredOutputs) -> AnswerForm:
    entries = given.model_dump(by_alias=True, exclude_none=True)
    options = {name: entries.pop(name) for name in OPTIONS if name in entries}
    if len(entries) != 1:
        kinds = ", ".join(entries) or "none"
        text = f"structured_outputs has {kinds}; it must have exactly one of {', '.join(KINDS)}"
        raise invalid("structured_outputs", text)
    ((kind, value),) = entries.items()
    return AnswerForm("structured_outputs", kind, value, options)


def _of_grammar(given: Grammar) -> AnswerForm:
    expected = dict if given.type == "json" else str
    if not isinstance(given.value, expected):
        what = "an object" if given.type == "json" else "a text"
        text = f"grammar.value is {given.value!a}; with the type {given.type} it must be {what}"
        raise invalid("grammar.value", text)
    return AnswerForm("grammar", given.type, given.value)


def invalid(field: str, message: str) -> ApiError:
    """Return the error of a field with an invalid value."""
    return ApiError(400, "invalid_value", message, param=field)
