"""The arguments of a call, in formats that write each key and each value between texts of their own."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from inflight_gateway import structural_tags
from inflight_gateway.pieces import Arguments, Call
from inflight_gateway.reader import Emit
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import ANY_TEXT, Tag, any_number_of, either, sequence, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.bare_texts import (
    properties_of,
    read_value,
    required_of,
    types_of,
    value_tag,
    written_value,
)
from inflight_gateway.tool_formats.tool import Tool, WrittenCall


@dataclass(frozen=True)
class KeyedValues:
    """How a format writes arguments."""

    models: str
    """Whose format it is, for errors."""
    key: tuple[str, str]
    """What stands before and after a key."""
    value: tuple[str, str]
    """What stands before and after a value. If nothing stands before it, the value has its lines for itself."""
    between: str = "\n"
    """What stands between a key and its value. If it is nothing, they share a line."""
    after: str = "\n"
    """What stands after an argument."""

    @property
    def _padding(self) -> str:
        return "" if self.value[0] else self.between

    def tag(self, tool: Tool) -> Tag:
        """Return the structural tag of arguments that match the schema, in its order.

        Raises:
            Unenforceable: a text has a schema that is more than a choice of texts.
        """
        required = required_of(tool)
        tags = []
        for key, schema in properties_of(tool).items():
            one = self.argument_tag(tool, key, schema)
            tags.append(one if key in required else either(one, structural_tags.text("")))
        return sequence(*tags) if tags else structural_tags.text("")

    def argument_tag(self, tool: Tool, key: str, schema: Any) -> Tag:
        """Return the structural tag of an argument that matches its schema. Raises what `tag` raises."""
        return tag(self._before(key), value_tag(tool, key, schema, self.models), self._after())

    @property
    def any_tag(self) -> Tag:
        """The structural tag of any arguments. It names all markers: free text has none that is a control token."""
        (key, key_end), (value, _) = self.key, self.value
        return any_number_of(
            sequence(tag(key, ANY_TEXT, f"{key_end}{self.between}{value}"), tag("", ANY_TEXT, self._after())), ""
        )

    def written(self, call: WrittenCall) -> str:
        """Return the arguments of a call as the model writes them."""
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        return "".join(self.written_argument(key, value) for key, value in arguments.items())

    def written_argument(self, key: str, value: object) -> str:
        """Return an argument as the model writes it."""
        return self._before(key) + written_value(value) + self._after()

    def read(self, source: Source, emit: Emit, name: str, tools: Mapping[str, Tool]) -> Reading[str]:
        """Read what follows the name of a function. Emit a call with JSON for its arguments, and return the JSON's end.

        `tools`: those of the request by name.
        """
        emit(Call(name))
        separator = "{"
        while True:
            yield from source.skip_space()
            if not (yield from source.accept(self.key[0])):
                return "{}" if separator == "{" else "}"
            written: list[str] = []
            if (yield from source.until((self.key[1],), written.append)) is None:
                return ""  # The answer was cut off within the key, which would be another one.
            key = "".join(written).strip()
            emit(Arguments(f"{separator}{json_text.text_of(key)}: "))
            separator = ", "
            opening, end = self.value
            if opening:
                yield from source.skip_space()
                if not (yield from source.accept(opening)):
                    continue
            types = yield from self.read_types(source, tools.get(name), key)
            yield from read_value(source, emit, end, types, padding=self._padding)

    def read_types(self, source: Source, tool: Tool | None, key: str) -> Reading[Set[str]]:
        """Return the types that a value may have, and read what says them in the answer, if anything does."""
        yield from ()
        return types_of(tool, key)

    def _before(self, key: str) -> str:
        return f"{self.key[0]}{key}{self.key[1]}{self.between}{self.value[0]}"

    def _after(self) -> str:
        return f"{self._padding}{self.value[1]}{self.after}"
