"""DeepSeek V3.2 to V4.1: <｜DSML｜invoke name="..."><｜DSML｜parameter name="key" string="true">value, in a section."""  # noqa: RUF002

from collections.abc import Set
from typing import Any

from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import ANY_TEXT, Tag, any_number_of, either, json_value, sequence, tag, text
from inflight_gateway.tool_formats.bare_texts import json_tag, types_of, value_tag, written_value
from inflight_gateway.tool_formats.invoke_section import InvokeSection
from inflight_gateway.tool_formats.keyed_values import KeyedValues
from inflight_gateway.tool_formats.tool import Tool

# These bars are not those of ASCII.
_DSML = "｜DSML｜"  # noqa: RUF001
_KIND = ' string="'
_TEXT, _JSON = f'{_KIND}true">', f'{_KIND}false">'


class _Values(KeyedValues):
    """Each key says whether its value is a text, which stands there as it is, or JSON."""

    def argument_tag(self, tool: Tool, key: str, schema: Any) -> Tag:
        """See `KeyedValues`."""
        key_text, types = f"{self.key[0]}{key}{self.key[1]}", types_of(tool, key)
        kinds: list[Tag] = []
        if "string" in types:
            kinds.append(tag(_TEXT, value_tag(tool, key, schema, self.models), self._after()))
        if types != {"string"}:
            kinds.append(tag(_JSON, json_tag(tool, schema), self._after()))
        return sequence(text(key_text), either(*kinds))

    @property
    def any_tag(self) -> Tag:
        """See `KeyedValues`."""
        key = tag(self.key[0], ANY_TEXT, self.key[1])
        kinds = either(tag(_TEXT, ANY_TEXT, self._after()), tag(_JSON, json_value({}), self._after()))
        return any_number_of(sequence(key, kinds), "")

    def written_argument(self, key: str, value: object) -> str:
        """See `KeyedValues`."""
        kind = _TEXT if isinstance(value, str) else _JSON
        return f"{self.key[0]}{key}{self.key[1]}{kind}{written_value(value)}{self._after()}"

    def read_types(self, source: Source, tool: Tool | None, key: str) -> Reading[Set[str]]:
        """See `KeyedValues`. Where the answer does not say it, the schema does."""
        said: list[str] = []
        if (yield from source.until((">", "<"), said.append)) == "<":
            source.put_back("<")
        match "".join(said).strip():
            case 'string="true"':
                return {"string"}
            case 'string="false"':
                return set()
        return types_of(tool, key)


class DeepSeekV32(InvokeSection):
    """The calls of V3.2. Its templates name the control token that all markers have in them, and not the markers."""

    name = "deepseek-v3.2"
    markers = (_DSML,)
    section = f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"
    triggers = section[:1]
    opening, closing = f"{section[0]}\n", section[1]
    invoke = f'<{_DSML}invoke name="', f"</{_DSML}invoke>"
    arguments = _Values("DeepSeek V3.2", (f'<{_DSML}parameter name="', '"'), ("", f"</{_DSML}parameter>"), between="")


class DeepSeekV4(DeepSeekV32):
    """The calls of V4: the same in a section of another name."""

    name = "deepseek-v4"
    section = f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"
    triggers = section[:1]
    opening, closing = f"{section[0]}\n", section[1]


class DeepSeekV41(DeepSeekV32):
    """The calls of V4.1: a space is before all names of tags."""

    name = "deepseek-v4.1"
    section = f"<{_DSML} calls>", f"</{_DSML} calls>"
    triggers = section[:1]
    opening, closing = f"{section[0]}\n", section[1]
    invoke = f'<{_DSML} invoke name="', f"</{_DSML} invoke>"
    arguments = _Values("DeepSeek V4.1", (f'<{_DSML} parameter name="', '"'), ("", f"</{_DSML} parameter>"), between="")
