"""The tools of a request, and the names that the model sees of them."""

from collections.abc import Iterator
from typing import Any

from inflight_gateway.responses_api.function_name import FunctionName
from inflight_gateway.responses_api.request import (
    AllowedToolsChoiceItem,
    FunctionChoice,
    FunctionToolItem,
    NamespaceItem,
    ResponsesRequest,
)
from inflight_gateway.tool_formats import Tool
from inflight_gateway.tool_use import ToolUse, named_tools, use_of


def function_names(body: ResponsesRequest) -> dict[str, FunctionName]:
    """Return how calls name functions, by the names that the model sees."""
    return {name.shown: name for _, name, _ in _functions(body)}


def tool_use(body: ResponsesRequest) -> ToolUse | None:
    """Return what the request says of tools; None if the answer may call none. Raises what `use_of` raises."""
    tools = named_tools((field, _tool(name.shown, item)) for field, name, item in _functions(body))
    choice, several = body.tool_choice, body.parallel_tool_calls is not False
    match choice:
        case FunctionChoice():
            return use_of(tools, "required", [choice.name], several=several)
        case AllowedToolsChoiceItem():
            return use_of(tools, choice.mode, [tool.name for tool in choice.tools], several=several)
    return use_of(tools, choice or "auto", None, several=several)


def _functions(body: ResponsesRequest) -> Iterator[tuple[str, FunctionName, FunctionToolItem]]:
    """Yield the field of each function's name, the name, and the function."""
    for index, item in enumerate(body.tools or ()):
        field = f"tools[{index}]"
        match item:
            case FunctionToolItem():
                yield f"{field}.name", FunctionName(item.name), item
            case NamespaceItem():
                for number, function in enumerate(item.tools):
                    yield f"{field}.tools[{number}].name", FunctionName(function.name, item.name), function


def _tool(name: str, item: FunctionToolItem) -> Tool:
    parameters: dict[str, Any] = {} if item.parameters is None else {"parameters": item.parameters}
    return Tool(name, **parameters, description=item.description, strict=item.strict is not False)
