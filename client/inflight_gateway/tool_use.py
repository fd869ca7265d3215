"""Which tools an answer may call, and whether it must."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inflight_gateway.asked_form import invalid
from inflight_gateway.chat_request import AllowedToolsChoice, ChatRequest, FunctionTool, ToolReference
from inflight_gateway.structural_tags import Tag, either
from inflight_gateway.tool_formats import Tool, ToolFormat


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and what its answer may do with them."""

    tools: tuple[Tool, ...]
    """All of them; the model is shown them."""
    callable: tuple[Tool, ...]
    """Those that the answer may call."""
    required: bool
    """Whether the answer must consist of calls."""
    several: bool
    """Whether it may have more than one call."""

    def tag(self, form: ToolFormat, answer: Tag | None) -> Tag | None:
        """Return the structural tag of the answer. None: it is free.

        Args:
            form: how the model writes calls.
            answer: the structural tag of an answer without calls, where it must have a form.

        Raises:
            Unenforceable: the schema of a tool cannot be enforced.
        """
        if self.required:
            return form.calls(self.callable, several=self.several)
        if answer is not None:
            return either(answer, form.calls(self.callable, several=self.several, enforced=False))
        is_free = self.several and self.callable == self.tools and not any(tool.strict for tool in self.tools)
        return None if is_free else form.text_and_calls(self.callable, several=self.several)


def tool_use(body: ChatRequest) -> ToolUse | None:
    """Return what a chat says of tools; None if its answer may call none. Raises what `use_of` raises."""
    tools = tools_by_name(body.tools or ())
    choice, several = body.tool_choice, body.parallel_tool_calls is not False
    match choice:
        case ToolReference():
            return use_of(tools, "required", [choice.function.name], several=several)
        case AllowedToolsChoice():
            allowed = choice.allowed_tools
            return use_of(tools, allowed.mode, [tool.function.name for tool in allowed.tools], several=several)
    return use_of(tools, choice or "auto", None, several=several)


def use_of(tools: Mapping[str, Tool], mode: str, names: Sequence[str] | None, *, several: bool) -> ToolUse | None:
    """Return the use of tools by name; None if the answer may call none.

    Args:
        tools: all tools by name.
        mode: `none`, `auto` or `required`.
        names: those that the answer may call. None: all.
        several: whether it may have more than one call.

    Raises:
        ApiError: a name is not that of a tool, or there are no tools to choose from.
    """
    if not tools and (mode == "required" or names):
        raise invalid("tool_choice", "tool_choice asks for a call, but there are no tools")
    for name in names or ():
        if name not in tools:
            raise invalid("tool_choice", f"tool_choice names {name}; it must be one of {', '.join(tools)}")
    if not tools or mode == "none":
        return None
    chosen = tuple(tools[name] for name in dict.fromkeys(tools if names is None else names))
    return ToolUse(tuple(tools.values()), chosen, mode == "required", several)


def tools_by_name(tools: Sequence[FunctionTool]) -> dict[str, Tool]:
    """Return the tools of a chat by name. Raises ApiError if two have the same."""
    return named_tools((f"tools[{index}].function.name", _tool(tool)) for index, tool in enumerate(tools))


def named_tools(tools: Iterable[tuple[str, Tool]]) -> dict[str, Tool]:
    """Return tools by name. Each comes with the field of its name, for the error.

    Raises:
        ApiError: two tools have the same name.
    """
    by_name: dict[str, Tool] = {}
    for field, tool in tools:
        if tool.name in by_name:
            raise invalid(field, f"{field} is {tool.name}, which another tool has too; each must have its own")
        by_name[tool.name] = tool
    return by_name


def _tool(tool: FunctionTool) -> Tool:
    function = tool.function
    parameters: dict[str, Any] = {} if function.parameters is None else {"parameters": function.parameters}
    return Tool(function.name, **parameters, description=function.description, strict=bool(function.strict))
