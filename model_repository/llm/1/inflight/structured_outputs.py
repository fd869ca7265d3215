"""What the output of a request must be: a JSON document, a match of a regular expression, a sentence of a grammar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inflight.errors import InvalidRequest
from inflight.text.unicode import check_unicode

MAX_CHARACTERS = 2**16
"""Maximum length of a schema, a pattern or a grammar. Compiling takes up to a third of a second at this length."""
MAX_CHOICES = 4096

JSON, JSON_OBJECT, REGEX, CHOICE = "json", "json_object", "regex", "choice"
GRAMMAR, STRUCTURAL_TAG = "grammar", "structural_tag"
KINDS = (JSON, JSON_OBJECT, REGEX, CHOICE, GRAMMAR, STRUCTURAL_TAG)
_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, kw_only=True, eq=False)
class StructuredOutputs:
    """A constraint on the output, with the names of vLLM. Exactly one of the first six fields is given.

    Raises:
        InvalidRequest: none or several are given, or a value is of the wrong type or too large.
    """

    json: Mapping[str, Any] | bool | str | None = None
    """A JSON schema, as an object or as JSON text. Objects that name properties have no others unless
    `additionalProperties` says so, as in vLLM."""

    json_object: bool | None = None
    """True: any JSON object."""

    regex: str | None = None
    """A regular expression in the syntax of Rust's `regex`, which the whole output matches. No look-around."""

    choice: Sequence[str] | None = None
    """The output is one of these texts; at most 4096."""

    grammar: str | None = None
    """A context-free grammar: Lark's syntax as llguidance has it, or EBNF (GBNF) with the rule `root`."""

    structural_tag: Mapping[str, Any] | str | None = None
    """Text with structured parts, as an object or as JSON text: the older form of vLLM (`structures`, `triggers`), or
    xgrammar's (`format`)."""

    whitespace_pattern: str | None = None
    """A regular expression for the white space between the parts of a JSON document, also within structural tags.
    Default: one space after each comma and colon, none elsewhere."""

    disable_any_whitespace: bool = False
    """Taken for compatibility with vLLM: without `whitespace_pattern`, white space is never free."""

    kind: str = field(init=False, repr=False)
    """One of `KINDS`."""
    text: str = field(init=False, repr=False)
    """The value of the field that is given, as text: JSON for schemas, choices and structural tags."""

    def __post_init__(self) -> None:
        values = {kind: getattr(self, kind) for kind in KINDS}
        given = [kind for kind in KINDS if values[kind] is not None and (kind != JSON_OBJECT or values[kind])]
        if len(given) != 1:
            raise InvalidRequest(
                f"structured_outputs has {' and '.join(given) or 'no constraint'}; it must have exactly one of "
                f"{', '.join(KINDS)}"
            )
        kind = given[0]
        text = _as_text(kind, values[kind])
        if not isinstance(self.disable_any_whitespace, bool):
            raise InvalidRequest(f"disable_any_whitespace is {self.disable_any_whitespace!r}; it must be true or false")
        _check_text(kind, text)
        if self.whitespace_pattern is not None:
            _check_text("whitespace_pattern", _text("whitespace_pattern", self.whitespace_pattern))
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "text", text)

    @property
    def key(self) -> tuple[str, str, str | None]:
        """Equal for equal constraints."""
        return self.kind, self.text, self.whitespace_pattern

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuredOutputs) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _as_text(kind: str, value: Any) -> str:
    if kind == JSON_OBJECT:
        if value is not True:
            raise InvalidRequest(f"{kind} is {value!r}; it must be true")
        return _ANY_OBJECT
    if kind == CHOICE:
        return _choices(value)
    if kind in (JSON, STRUCTURAL_TAG) and not isinstance(value, str):
        if not isinstance(value, Mapping) and not (kind == JSON and isinstance(value, bool)):
            raise InvalidRequest(f"{kind} is {value!r}; it must be a JSON object")
        return _json_text(kind, value)
    return _text(kind, value)


def _json_text(kind: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{kind} cannot be written as JSON: {error}") from None


def _choices(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidRequest(f"{CHOICE} is {value!r}; it must be a list of at least 1 text")
    if len(value) > MAX_CHOICES:
        raise InvalidRequest(f"{CHOICE} has {len(value)} texts; it must have at most {MAX_CHOICES}")
    for text in value:
        if not _text(CHOICE, text):
            raise InvalidRequest(f"{CHOICE} holds an empty text; each must have at least 1 character")
    return json.dumps(list(value))


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequest(f"{name} has {len(text)} characters; it must have at most {MAX_CHARACTERS}")
    check_unicode(name, text)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r}; it must be a text")
    return value
