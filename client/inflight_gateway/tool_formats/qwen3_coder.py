"""Qwen 3 Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>."""

from collections.abc import Mapping, Sequence
from typing import Any

from inflight_gateway import structural_tags
from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.strict_json import read_json
from inflight_gateway.structural_tags import ANY_TEXT, Tag, either, sequence, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.tool import NAME, Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat
from inflight_gateway.tool_formats.unenforceable import Unenforceable

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_PYTHON = {"True": "true", "False": "false", "None": "null"}
# What a text may have beside its type without a bound on the text.
_OF_FREE_TEXT = {"type", "anyOf", "title", "description", "default", "examples"}
# Of a schema whose types are looked for.
_MAX_PARTS = 100

_INSTRUCTIONS = """# Tools

You have access to the following functions:

<tools>
{tools}
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>"""


class Qwen3Coder(ToolFormat):
    """See the module. Texts stand there as they are, and other values as JSON; the schema says which is which."""

    name = "qwen3-coder"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    separator = "\n"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`. Raises Unenforceable for a schema of text that is more than a choice of texts."""
        content = _parameters(tool) if enforced or tool.strict else ANY_TEXT
        return tag(f"{_OPEN}\n{_FUNCTION}{tool.name}>\n", content, f"{_END}\n{_CLOSE}")

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. The tag around a function may be missing: models forget it."""
        called = False
        while True:
            space, marker = yield from text_until(source, (_OPEN, _CLOSE, _FUNCTION), emit)
            if marker is None:
                return
            if marker == _CLOSE and called:
                yield from source.skip_space()
                called = False
                continue
            opening = space + marker
            if marker == _OPEN:
                opening += yield from source.space()
                if (yield from source.accept(_FUNCTION)):
                    marker = _FUNCTION
                    opening += _FUNCTION
            if marker == _FUNCTION and (name := (yield from _read_name(source))) is not None:
                yield from _read_arguments(source, emit, name, tools)
                yield from source.skip_space()
                called = True
            else:
                emit(Text(opening))

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "\n".join(map(_written, calls))


def _written(call: WrittenCall) -> str:
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    parameters = "".join(
        f"{_PARAMETER}{key}>\n{value if isinstance(value, str) else json_text.text_of(value)}\n{_PARAMETER_END}\n"
        for key, value in arguments.items()
    )
    return f"{_OPEN}\n{_FUNCTION}{call.name}>\n{parameters}{_END}\n{_CLOSE}"


def _read_name(source: Source) -> Reading[str | None]:
    """Read the name of a function. If there is none, as in a text about this format, read nothing and return None."""
    source.keep()
    written: list[str] = []
    # No name has the beginning of another call in it. Otherwise each call would be read up to the end of the answer.
    end = yield from source.until((">", "\n", "<"), written.append)
    read = source.kept()
    name = "".join(written).strip()
    if end == ">" and NAME.fullmatch(name):
        return name
    source.put_back(read)
    return None


def _read_arguments(source: Source, emit: Emit, name: str, tools: Mapping[str, Tool]) -> Reading[None]:
    """Read what follows the name of a function. Emit a call with JSON for its arguments."""
    emit(Call(name))
    tool = tools.get(name)
    parameters = {} if tool is None else tool.parameters
    separator = "{"
    while True:
        yield from source.skip_space()
        if not (yield from source.accept(_PARAMETER)):
            break
        key: list[str] = []
        yield from source.until((">",), key.append)
        emit(Arguments(f"{separator}{json_text.text_of(''.join(key))}: "))
        separator = ", "
        schema = _object(parameters.get("properties")).get("".join(key))
        yield from _read_value(source, emit, _types(schema, parameters))
    # Models forget one of the ends.
    if (yield from source.accept(_END)) or (yield from source.accept(_CLOSE)):
        emit(Arguments("{}" if separator == "{" else "}"))


def _read_value(source: Source, emit: Emit, types: set[str]) -> Reading[None]:
    """Read a value up to its end. Text is passed on as it arrives."""
    yield from source.accept("\n")
    ends = (f"\n{_PARAMETER_END}", _PARAMETER_END)
    if types == {"string"}:
        emit(Arguments('"'))
        if (yield from source.until(ends, lambda text: emit(Arguments(json_text.inside_quotes(text))))) is not None:
            emit(Arguments('"'))
        return
    written: list[str] = []
    if (yield from source.until(ends, written.append)) is not None:
        emit(Arguments(_as_json("".join(written), types)))


def _as_json(text: str, types: set[str]) -> str:
    """Return the JSON of a value that need not be text."""
    written = _PYTHON.get(text.strip(), text.strip())
    if "string" in types and written != "null":
        return json_text.text_of(text)
    try:
        read_json(written)
    except (ValueError, RecursionError):
        return json_text.text_of(text)
    return written


def _types(schema: Any, whole: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows, as far as it names them. `whole`: the schema that it refers to."""
    parts: list[Any] = [schema]
    found: set[str] = set()
    for part in map(_object, parts):  # The list grows meanwhile.
        kinds = part.get("type", "string" if _are_texts(part.get("enum")) else [])
        found.update(kind for kind in _list(kinds) if isinstance(kind, str))
        if len(parts) < _MAX_PARTS:
            name = str(part.get("$ref")).rpartition("/")[2]
            referred = [_object(whole.get(key)).get(name) for key in ("$defs", "definitions")]
            parts += [*_list(part.get("anyOf")), *_list(part.get("oneOf")), *filter(None, referred)]
    return found


def _object(value: Any) -> Mapping[str, Any]:
    """Return an object as it is. What is none, in the schema of a client, counts as empty."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    """Return a list as it is, and a text as a list of one."""
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)


def _parameters(tool: Tool) -> Tag:
    """Return the structural tag of the parameters, in the order of the schema."""
    required = _list(tool.parameters.get("required"))
    tags = []
    for key, schema in _object(tool.parameters.get("properties")).items():
        one = tag(f"{_PARAMETER}{key}>\n", _value(tool, key, schema), f"\n{_PARAMETER_END}\n")
        tags.append(one if key in required else either(one, structural_tags.text("")))
    return sequence(*tags) if tags else structural_tags.text("")


def _value(tool: Tool, key: str, schema: Any) -> Tag:
    if "string" not in _types(schema, tool.parameters):
        definitions = {name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters}
        return structural_tags.json_value({**definitions, **_object(schema)})
    if _are_texts(_object(schema).get("enum")):
        return either(*map(structural_tags.text, schema["enum"]))
    if all(part.keys() <= _OF_FREE_TEXT for part in (_object(schema), *map(_object, _list(schema.get("anyOf"))))):
        return ANY_TEXT
    raise Unenforceable(tool.name, f"the schema of {key}, {json_text.text_of(schema)}, in Qwen 3 Coder's format")
