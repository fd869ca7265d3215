"""SmolLM2, as its model card documents it: <tool_call>[{"name": ..., "arguments": {...}}, ...]</tool_call>."""

from collections.abc import Sequence

from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.hermes import CLOSE, OPEN, Hermes
from inflight_gateway.tool_formats.json_call import call_tag
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_INSTRUCTIONS = """You are an expert in composing functions. You are given a question and a set of possible functions.
Based on the question, you will need to make one or more function/tool calls to achieve the purpose.
If none of the functions can be used, point it out and refuse to answer.
If the given question lacks the parameters required by the function, also point it out.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
The example format is as follows. Please make sure the parameter type is correct. If no function call is needed, please make the tool calls an empty list '[]'.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more tool calls as required)
]</tool_call>"""  # noqa: E501 - the model was trained with these lines


class SmolLM2(ListFormat):
    """See the module."""

    name = "smollm2"
    markers = Hermes.markers
    triggers = Hermes.triggers
    opening, closing = f"{OPEN}[", f"]{CLOSE}"
    read = Hermes.read  # Which also reads lists.

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, enforced=enforced)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.text_of([tool.shown() for tool in tools]))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return f"{OPEN}{json_text.text_of([call.as_object() for call in calls])}{CLOSE}"
