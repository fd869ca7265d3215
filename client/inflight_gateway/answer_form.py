"""What an answer must be, apart from thoughts and tool calls."""

from dataclasses import dataclass, field
from typing import Any

from inflight_gateway import structural_tags
from inflight_gateway.structural_tags import Tag, either

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
OPTIONS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")


def server_names(asked_by: str) -> dict[str, str]:
    """Return the names that the server's errors have for a form, with the field of the request that asks for it."""
    # The server's parameters can be too large, and a form is most likely what makes them so.
    return dict.fromkeys(("structured_outputs", "sampling_parameters", *KINDS, *OPTIONS), asked_by)


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer: one of the kinds of the server's field `structured_outputs`."""

    asked_by: str
    """The field of the request that asks for it."""
    kind: str
    """One of `KINDS`."""
    value: Any
    options: dict[str, Any] = field(default_factory=dict)
    """Further entries of `structured_outputs`."""

    def structured_outputs(self) -> dict[str, Any]:
        """Return the server's field."""
        return {self.kind: self.value, **self.options}

    def tag(self) -> Tag | None:
        """Return the form as part of a structural tag. None if it cannot be such a part."""
        match self.kind:
            case "json":
                return structural_tags.json_value(self.value)
            case "json_object":
                return structural_tags.json_value({"type": "object"})
            case "regex":
                return structural_tags.regex(self.value)
            case "choice":
                return either(*map(structural_tags.text, self.value))
            case "grammar":
                return structural_tags.grammar(self.value)
        tag = self.value.get("format")
        return tag if isinstance(tag, dict) else None
