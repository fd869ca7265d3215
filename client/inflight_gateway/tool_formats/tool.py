"""A tool of a request, and a call of it in the conversation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight_gateway import structural_tags
from inflight_gateway.structural_tags import Tag

NAME = re.compile(r"[\w.-]+", re.ASCII)
"""What the name of a tool consists of, whichever API it comes from."""
_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of its arguments."""
    description: str | None = None
    strict: bool = False
    """Whether arguments must match the schema even where the model may answer without a call."""

    def shown(self) -> dict[str, Any]:
        """Return the tool as templates and prompts show it to the model."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}

    def arguments(self, *, enforced: bool) -> Tag:
        """Return the structural tag of its arguments as JSON. `enforced`: they match even if the tool is not strict."""
        return structural_tags.json_value(self.parameters if enforced or self.strict else _ANY_OBJECT)


@dataclass(frozen=True)
class WrittenCall:
    """A call in a message of the conversation."""

    name: str
    arguments: Any
    """An object; text if it is none, because a model wrote it that was cut off."""

    def as_object(self, arguments: str = "arguments") -> dict[str, Any]:
        """Return the call as most models write it. `arguments`: the name of that member."""
        return {"name": self.name, arguments: self.arguments}
