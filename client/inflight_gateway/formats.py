"""Which formats a model uses, found from its chat template or named by the operator."""

from dataclasses import dataclass

from inflight_client import ModelDescription
from inflight_gateway.reasoning import REASONING_FORMATS, ReasoningFormat
from inflight_gateway.tool_formats import FORMATS, ToolFormat

AUTO, NONE = "auto", "none"

# What chat templates write in or around calls, and the format that does so. The first that is found counts.
_OF_TEMPLATES = (
    ("<function=", "qwen3-coder"),
    ("[ARGS]", "mistral-args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ('{"name": function name, "parameters"', "llama3"),
)
# What is in templates that know no tools, and the format that their models have learned all the same.
_OF_MODELS = (("named SmolLM", "smollm2"), ("<|start_header_id|>", "llama3"), ("[INST]", "mistral"), ("", "hermes"))
# The variables in which templates expect tools. SmolLM3 has its own, and another one for code.
_TOOLS = ("tools", "xml_tools")


@dataclass(frozen=True)
class Formats:
    """The formats of the served model."""

    tool_format: ToolFormat | None
    """None: the model writes calls in a way that the gateway does not know."""
    reasoning_format: ReasoningFormat | None
    """None: the model does not think, or its thoughts are part of the answer."""
    tools_variable: str | None
    """The variable with which the chat template shows tools to the model. None: there is none, so the gateway does."""
    template_writes_calls: bool
    """Whether the chat template writes the calls of earlier messages. If not, the gateway does."""
    template_variables: frozenset[str]
    special_tokens: frozenset[str]

    @classmethod
    def of(cls, model: ModelDescription, tool_format: str, reasoning_format: str) -> "Formats":
        """Return the formats of a model. Both names may be `auto`; that of the reasoning format may be `none`."""
        template = model.chat_template or ""
        tools_variable = next((name for name in _TOOLS if name in model.template_variables), None)
        written = _OF_TEMPLATES if tools_variable is not None else _OF_MODELS
        found = next((name for text, name in written if text in template), None)
        name = found if tool_format == AUTO else tool_format
        return cls(
            tool_format=None if name is None else FORMATS[name],
            reasoning_format=_reasoning_format(template, reasoning_format),
            tools_variable=tools_variable,
            template_writes_calls="tool_calls" in template,
            template_variables=frozenset(model.template_variables),
            special_tokens=frozenset(model.special_tokens.values()),
        )

    def are_special(self, markers: tuple[str, ...]) -> bool:
        """Whether any of these texts is a special token, which answers leave out unless they are asked not to."""
        return not self.special_tokens.isdisjoint(markers)


def _reasoning_format(template: str, name: str) -> ReasoningFormat | None:
    if name == AUTO:
        return next((one for one in REASONING_FORMATS.values() if one.begin in template), None)
    return None if name == NONE else REASONING_FORMATS[name]
