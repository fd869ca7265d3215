"""Writes a constraint as a grammar for llguidance. What would not be enforced to the letter is refused by name."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llguidance import LLMatcher

from inflight.errors import InvalidRequest
from inflight.guided_decoding.closed_objects import close_objects
from inflight.guided_decoding.ebnf import lark_syntax
from inflight.guided_decoding.schema_cost import check_cost
from inflight.guided_decoding.schemas_in import schemas_in
from inflight.guided_decoding.structural_tag import structural_tag_grammars
from inflight.structured_outputs import CHOICE, GRAMMAR, REGEX, STRUCTURAL_TAG, StructuredOutputs

# Models are used to this form, which is that of Python's `json.dumps`.
_SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
# Options of a rule that llguidance reads, but that change nothing here, or would need tokens to be taken back.
_UNENFORCED = re.compile(r"\b(temperature|stop)\b")
_OPTIONS = re.compile(r"^[ \t?!]*+[\w-]++[ \t]*+\[([^\]\n]*+)\][ \t]*+:", re.MULTILINE)
# Of one terminal: a fifth of a second at this number, and a second and 140 MB at 100.
_MOST_INTERSECTIONS = 64
_LARGEST_EXACT = 2**53
_ESCAPE_OR_NEGATED_CLASS = re.compile(r"\\.|\[\^((?:\\.|[^\]\[\\])+)\]", re.DOTALL)


def grammar_text(wanted: StructuredOutputs, special_tokens: Mapping[str, int]) -> str:
    """Return the grammar of a constraint in llguidance's serialized form. It may still turn out to be invalid.

    Args:
        special_tokens: the ids of the model's control tokens by their texts, for structural tags.

    Raises:
        InvalidRequest: the constraint is malformed, or a part of it would not be enforced.
    """
    if wanted.kind in (REGEX, CHOICE):
        _check_spelled(wanted.kind, [wanted.text], special_tokens)
    if wanted.kind == REGEX:
        return str(LLMatcher.grammar_from_regex(wanted.text))
    if wanted.kind == CHOICE:
        return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(wanted.text)))))
    if wanted.kind == GRAMMAR:
        return str(LLMatcher.grammar_from_lark(lark_of(wanted.text)))

    def schema_of(given: Any) -> dict[str, Any]:
        schema = json_schema(given, wanted.whitespace_pattern)
        _check_spelled("json", _enforced_texts(schema), special_tokens)
        return schema

    if wanted.kind == STRUCTURAL_TAG:
        tag = _decoded(wanted.kind, wanted.text)
        return json.dumps({"grammars": structural_tag_grammars(tag, special_tokens, schema_of, lark_of)})
    schema = schema_of(_decoded("json", wanted.text))
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def lark_of(grammar: str) -> str:
    """Return a grammar in Lark's syntax; EBNF is converted.

    Raises:
        InvalidRequest: it is malformed EBNF, uses an option that is not enforced, or would take too long to compile.
    """
    if "x-guidance" in grammar:
        raise InvalidRequest("grammar has the key 'x-guidance', which is not supported")
    if (count := grammar.count("&")) > _MOST_INTERSECTIONS:
        raise InvalidRequest(f"grammar has {count} times '&'; it must have it at most {_MOST_INTERSECTIONS} times")
    for options in _OPTIONS.finditer(grammar):
        if (option := _UNENFORCED.search(options[1])) is not None:
            raise InvalidRequest(f"grammar has the option {option[1]!r} on a rule, which is not supported")
    try:
        return lark_syntax(grammar)
    except Exception as error:  # noqa: BLE001 - it raises bare ones, and what fails depends on the grammar alone
        raise InvalidRequest(f"grammar is no valid EBNF: {error}") from None


def json_schema(schema: Any, whitespace_pattern: str | None = None) -> dict[str, Any]:
    """Return a JSON schema with the options that llguidance needs.

    Raises:
        InvalidRequest: it is no schema, nothing matches it, a part of it would not be enforced, or it would take too
            long to compile.
    """
    if schema is False:
        raise InvalidRequest("json is false; no document matches that schema")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest(f"json is {schema!r}; it must be a JSON schema, which is an object")
    if "x-guidance" in schema:
        raise InvalidRequest("json has the key 'x-guidance', which is not supported")
    check_cost(schema)
    _check_min_properties(schema)
    _check_numbers(schema)
    _exclude_escapes(schema)
    try:
        schema = close_objects(schema)
    except RecursionError:
        raise InvalidRequest("json is nested too deep") from None
    options = _SEPARATORS if whitespace_pattern is None else {"whitespace_pattern": whitespace_pattern}
    return {**schema, "x-guidance": options}


def _check_min_properties(schema: dict[str, Any]) -> None:
    """llguidance does not see that an additional property occurs twice, so two of them may be one."""
    for part in schemas_in(schema):
        least, required = part.get("minProperties"), part.get("required")
        named = len(required) if isinstance(required, list) else 0
        if isinstance(least, int) and least > named + 1:
            raise InvalidRequest(
                f"json has minProperties {least}; it must be at most {named + 1}, as {named} properties are required"
            )


def _check_spelled(name: str, texts: Iterable[str], special_tokens: Mapping[str, int]) -> None:
    """Where a text is forced, llguidance makes a control token of one that is spelled, and the output may end there."""
    written = "\0".join(texts).replace("\\", "")
    if (token := next((token for token in special_tokens if token in written), None)) is not None:
        raise InvalidRequest(f"{name} has the text {token!r}, a control token of the model; it cannot be enforced")


def _enforced_texts(schema: dict[str, Any]) -> Iterator[str]:
    for part in schemas_in(schema):
        named = part.get("properties")
        unseen: list[Any] = [part.get(key) for key in ("const", "enum", "pattern")]
        unseen += list(named) if isinstance(named, dict) else []
        while unseen:
            value = unseen.pop()
            if isinstance(value, str):
                yield value
            elif isinstance(value, dict | list):
                unseen += [*value, *value.values()] if isinstance(value, dict) else value


def _check_numbers(schema: dict[str, Any]) -> None:
    """llguidance holds numbers as floats. A bound that is none becomes the next one that is stricter."""
    for part in schemas_in(schema):
        for keyword in ("const", "enum"):
            for number in _whole_numbers_in(part.get(keyword)):
                if abs(number) > _LARGEST_EXACT:
                    raise InvalidRequest(
                        f"json has {keyword} with {number}; whole numbers there must be at most {_LARGEST_EXACT}, 2^53"
                    )
        for keyword, inward in (("minimum", math.inf), ("maximum", -math.inf)):
            bound = part.get(keyword)
            if isinstance(bound, int) and not isinstance(bound, bool) and abs(bound) > _LARGEST_EXACT:
                part[keyword] = _exact(bound, inward)


def _exclude_escapes(schema: dict[str, Any]) -> None:
    r"""Keep negated classes of patterns from what they exclude.

    If a class holds all control characters, llguidance lets it match all short escapes, such as `\"` for `[^"]`.
    Without one of these characters, it does not.
    """
    for part in schemas_in(schema):
        if isinstance(pattern := part.get("pattern"), str):
            part["pattern"] = _ESCAPE_OR_NEGATED_CLASS.sub(_without_nul, pattern)


def _without_nul(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f"[^{found[1]}\\x00]"


def _exact(bound: int, inward: float) -> int:
    try:
        found = float(bound)
    except OverflowError:
        raise InvalidRequest(f"json has a bound of {len(str(abs(bound)))} digits, which is too large") from None
    if (found < bound) == (inward > 0) and found != bound:
        found = math.nextafter(found, inward)
    return int(found)


def _whole_numbers_in(value: Any) -> Iterator[int]:
    unseen = [value]
    while unseen:
        value = unseen.pop()
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
        elif isinstance(value, dict | list):
            unseen += value.values() if isinstance(value, dict) else value


def _decoded(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is {text!r}; it must be valid JSON: {error}") from None
