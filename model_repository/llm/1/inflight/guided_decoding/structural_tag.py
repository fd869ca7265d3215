"""Structural tags: free text with parts that must follow a schema, such as tool calls.

The format is xgrammar's (`{"type": "structural_tag", "format": ...}`), which vLLM also takes, and vLLM's older one
(`{"structures": [...], "triggers": [...]}`).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from inflight.errors import InvalidRequest
from inflight.text.unicode import check_unicode

_MAX_DEPTH = 32
_ANY = "/(.|\\n)*/"
_AT_LINE = re.compile(r"at (\d+)\(\d+\): (.*)", re.DOTALL)
_QUOTED_LINE = re.compile(r"\n *\d+ \| ")
_LONGEST_QUOTE = 200


def structural_tag_grammars(
    tag: Any,
    special_tokens: Mapping[str, int],
    json_schema: Callable[[Any], dict[str, Any]],
    lark_of: Callable[[str], str],
) -> list[dict[str, str]]:
    """Return a structural tag as grammars in Lark's syntax; the first one refers to the others by their names.

    Args:
        special_tokens: the ids of the model's control tokens by their texts. Where a constant text holds one, the
            output has that token.
        json_schema: adds the options of schemas; raises InvalidRequest.
        lark_of: converts grammars to Lark's syntax; raises InvalidRequest.

    Raises:
        InvalidRequest: the tag is malformed, or has a part that is not supported.
    """
    if not isinstance(tag, dict):
        raise InvalidRequest(f"structural_tag is {tag!r}; it must be a JSON object")
    if "structures" in tag:
        form = _older(tag)
    elif "format" in tag:
        form = tag["format"]
    else:
        raise InvalidRequest("structural_tag has neither format nor structures")
    return _Writer(special_tokens, json_schema, lark_of).write(form)


def _older(tag: dict[str, Any]) -> dict[str, Any]:
    tags = []
    for structure in _list(tag, "structures"):
        schema = _field(structure, "schema", dict)
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({**structure, "type": "tag", "content": content})
    return {"type": "triggered_tags", "triggers": _list(tag, "triggers"), "tags": tags}


def error_of_part(error: str, written: str) -> str:
    """Return llguidance's error with the part of the tag that it is about, in place of the line of the grammar.

    Args:
        written: what `structural_tag_grammars` has returned, serialized.
    """
    reason = _QUOTED_LINE.split(error, maxsplit=1)[0]
    if (found := _AT_LINE.match(reason)) is None:
        return reason
    lines = json.loads(written)["grammars"][0]["lark_grammar"].splitlines()
    number = int(found[1])
    part = lines[number - 1].partition(": ")[2] if number <= len(lines) else ""
    return f"{found[2]}, in {part.removeprefix('%json ')[:_LONGEST_QUOTE]}"


class _Writer:
    """Collects the rules of a grammar."""

    def __init__(
        self,
        special_tokens: Mapping[str, int],
        json_schema: Callable[[Any], dict[str, Any]],
        lark_of: Callable[[str], str],
    ) -> None:
        self._special = special_tokens
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._splitter = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if special_tokens else r"(?!)")
        self._schema_options, self._lark_of = json_schema, lark_of
        self._rules: list[str] = []
        self._others: list[dict[str, str]] = []
        self._writers: dict[str, Callable[[dict[str, Any], int], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def write(self, form: Any) -> list[dict[str, str]]:
        """Return the grammars of a format."""
        start = self._of(form, 0)
        lines = ["%llguidance {}", f"start: {start}", *self._rules]
        return [{"lark_grammar": "\n".join(lines)}, *self._others]

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _of(self, form: Any, depth: int) -> str:
        """Return an expression for a format."""
        if depth > _MAX_DEPTH:
            raise InvalidRequest(f"structural_tag is nested more than {_MAX_DEPTH} deep")
        kind = _text(form, "type")
        if kind not in self._writers:
            raise InvalidRequest(f"structural_tag has the type {kind!r}; it must be one of {', '.join(self._writers)}")
        return f"({self._writers[kind](form, depth + 1)})"

    # -- leaves ------------------------------------------------------------------------------------------------------

    def _const_string(self, form: dict[str, Any], _: int) -> str:
        return self._constant(_text(form, "value"))

    def _json_schema(self, form: dict[str, Any], _: int) -> str:
        return self._rule(f"%json {json.dumps(self._schema_options(form.get('json_schema')))}")

    def _regex(self, form: dict[str, Any], _: int) -> str:
        return self._rule(f"/{regex_to_lark(_text(form, 'pattern'), '')}/")

    def _grammar(self, form: dict[str, Any], _: int) -> str:
        name = f"g{len(self._others)}"
        self._others.append({"name": name, "lark_grammar": self._lark_of(_text(form, "grammar"))})
        return self._rule(f"@{name}")

    def _any_text(self, form: dict[str, Any], _: int) -> str:
        return self._rule(_ANY)

    # -- compositions ------------------------------------------------------------------------------------------------

    def _sequence(self, form: dict[str, Any], depth: int) -> str:
        elements = _list(form, "elements")
        parts, index = [], 0
        while index < len(elements):
            element = elements[index]
            if _is_free(element) and index + 1 < len(elements):
                parts.append(self._free_until(elements[index + 1], depth))
                index += 2
            else:
                parts.append(self._of(element, depth))
                index += 1
        return " ".join(parts)

    def _free_until(self, following: Any, depth: int) -> str:
        """Free text, and what comes after it: a text or a tag, whose first occurrence ends the free text."""
        kind = _text(following, "type")
        if kind == "const_string":
            return self._until(_text(following, "value"))
        if kind == "tag":
            return f"{self._until(_text(following, 'begin'))} {self._rest_of_tag(following, depth)}"
        raise InvalidRequest("structural_tag has any_text before something else than a const_string or a tag")

    def _or(self, form: dict[str, Any], depth: int) -> str:
        return " | ".join(self._of(element, depth) for element in _list(form, "elements"))

    def _tag(self, form: dict[str, Any], depth: int) -> str:
        return f"{self._constant(_text(form, 'begin'))} {self._rest_of_tag(form, depth)}"

    def _rest_of_tag(self, form: Any, depth: int) -> str:
        end = _text(form, "end")
        content = form.get("content")
        if _is_free(content) and end:
            return self._until(end)
        return f"{self._of(content, depth)} {self._constant(end)}"

    def _triggered_tags(self, form: dict[str, Any], depth: int) -> str:
        tags = _list(form, "tags")
        triggers = _texts(form, "triggers")
        calls = " | ".join(self._triggered(tag, triggers, depth) for tag in tags)
        once, needed = _truth(form, "stop_after_first"), _truth(form, "at_least_one")
        if once:
            return f"({calls})" if needed else f"({calls}) | {self._rule(_ANY)}"
        return f"({calls}){'+' if needed else '*'} {self._rule(_ANY)}"

    def _triggered(self, tag: Any, triggers: Sequence[str], depth: int) -> str:
        begin = _text(tag, "begin")
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise InvalidRequest(f"structural_tag has the tag {begin!r}, which begins with none of its triggers")
        rest = f"{self._constant(begin[len(trigger) :])} {self._rest_of_tag(tag, depth)}"
        return self._rule(f"{self._until(trigger)} {rest}")

    def _tags_with_separator(self, form: dict[str, Any], depth: int) -> str:
        tags = self._rule(" | ".join(f"({self._tag(tag, depth)})" for tag in _list(form, "tags")))
        separator = self._constant(_text(form, "separator"))
        once, needed = _truth(form, "stop_after_first"), _truth(form, "at_least_one")
        several = tags if once else f"{tags} ({separator} {tags})*"
        return several if needed else f"({several})?"

    # -- constant texts ----------------------------------------------------------------------------------------------

    def _constant(self, text: str) -> str:
        return " ".join(self._piece(piece) for piece in self._splitter.split(text) if piece) or '""'

    def _piece(self, text: str) -> str:
        return f"<[{self._special[text]}]>" if text in self._special else json.dumps(text)

    def _until(self, end: str) -> str:
        """Free text up to and including the first occurrence of `end`."""
        pieces = [piece for piece in self._splitter.split(end) if piece]
        if not pieces:
            raise InvalidRequest("structural_tag has an empty text where free text must end")
        if pieces[0] in self._special:
            return " ".join([self._rule(_ANY), *map(self._piece, pieces)])
        if len(pieces) > 1:
            # What stands before the first control token may also be in the text. The token itself is not.
            before = self._rule(f"/(.|\\n)*{regex_to_lark(re.escape(pieces[0]), '')}/")
            return " ".join([before, *map(self._piece, pieces[1:])])
        return self._rule(_ANY, f"[suffix={json.dumps(pieces[0])}]")


def _is_free(form: Any) -> bool:
    return isinstance(form, dict) and form.get("type") == "any_text"


def _field(form: Any, name: str, kind: type[Any], default: Any = None) -> Any:
    if not isinstance(form, dict):
        raise InvalidRequest(f"structural_tag holds {form!r}; it must be an object")
    value = form.get(name, default)
    if not isinstance(value, kind):
        raise InvalidRequest(f"structural_tag has {name} {value!r}; it must be of type {kind.__name__}")
    return value


def _text(form: Any, name: str) -> str:
    text = str(_field(form, name, str))
    check_unicode(f"structural_tag: {name}", text)
    return text


def _truth(form: Any, name: str) -> bool:
    return bool(_field(form, name, bool, False))


def _list(form: Any, name: str) -> list[Any]:
    items: list[Any] = _field(form, name, list)
    if not items:
        raise InvalidRequest(f"structural_tag has no {name}; there must be at least 1")
    return items


def _texts(form: Any, name: str) -> list[str]:
    texts = _list(form, name)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"structural_tag has {text!r} among its {name}; each must be a text")
    return texts
