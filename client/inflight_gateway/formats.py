"""Which formats a model uses, found from its chat template or named by the operator."""

from collections.abc import Sequence
from dataclasses import dataclass

from inflight_client import ModelDescription
from inflight_gateway.reasoning import REASONING_FORMATS, ReasoningFormat
from inflight_gateway.tool_formats import FORMATS, ToolFormat

AUTO, NONE = "auto", "none"

# Their own templates write calls, but know no tools. Those of other authors know both.
_OF_DEEPSEEK = (("<｜tool▁sep｜>", "```json", "deepseek-v3"), ("<｜tool▁sep｜>", "deepseek-v3.1"))  # noqa: RUF001
_OF_GLM4 = ("[gMASK]<sop>", "metadata", "glm4")
# Texts that chat templates write in or around calls, and the format that does so. The first whose texts are all found
# counts.
_OF_TEMPLATES = (
    ("<|channel|>", "harmony"),
    ("<|tool_call>", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("<tool_sep>", "<arg_key>", "hy3"),
    ("</arg_key><arg_value>", "glm-4.7"),
    ("<arg_key>", "glm"),
    _OF_GLM4,
    ("<|tool_call_argument_begin|>", "kimi-k2"),
    *_OF_DEEPSEEK,
    ("｜DSML｜", "function_calls", "deepseek-v3.2"),  # noqa: RUF001
    ("｜DSML｜", "tool_calls>", "deepseek-v4"),  # noqa: RUF001
    ("｜DSML｜", " calls>", "deepseek-v4.1"),  # noqa: RUF001
    ("<minimax:tool_call>", "minimax-m2"),
    ("<|action_start|>", "<|plugin|>", "internlm"),
    ("<|tool_call_start|>", "```python", "minicpm3"),
    ("<|tool_list_start|>", "lfm2"),
    ("<function_calls>", "olmo3"),
    ("<|START_ACTION|>", "cohere"),
    ("<|tools_prefix|>", "apertus"),
    ("<TOOLCALL>", "nemotron"),
    ("[func_name1(", "pythonic"),
    ("functools[", "functools"),
    ("<|/tool|>", "phi4-mini"),
    ("<|/tool_call|>", "phi4-mini"),
    ("<|tool_call|>", "granite3"),
    ("<seed:tool_call>", "seed-oss"),
    ("<function=example_function_name>{", "llama3-functions"),
    ("<function=", "qwen3-coder"),
    ("[ARGS]", "mistral-args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<tool_calls>", "jamba"),
    ("make calls in a single JSON array", "xlam"),
    ('{"name": function name, "parameters"', "llama3"),
    # LFM2.5. What LFM2's templates have around the list is above.
    ("List of tools: ", "lfm2"),
)
# What is in templates that write calls in an unknown format which has texts of the above in it. MiniMax M3 is one.
_UNKNOWN = ("]<]minimax[>[",)
# What is in templates that know no tools, and the format that their models have learned all the same.
_OF_MODELS = (
    *_OF_DEEPSEEK,
    _OF_GLM4,
    *(("named SmolLM", "smollm2"), ("<|start_header_id|>", "llama3"), ("[INST]", "mistral"), ("", "hermes")),
)
# The same for special tokens, if the templates have nothing of the format in them.
_OF_TOKENS = {"<|plugin|>": "internlm"}
# The variables in which templates expect tools. SmolLM3 has its own, and another one for code.
_TOOLS = ("tools", "xml_tools")
# In templates that write calls only where the content is null: the first of DeepSeek V3, and those of R1's distilled
# models. transformers takes null out of messages, so they never do.
_WRITES_NO_CALLS = "message['role'] == 'assistant' and message['content'] is none"
# The variables with which templates turn thinking on or off: most the first, those of DeepSeek V3.1, Kimi K2.5 and
# Granite 3 the second, that of Command A Reasoning the third. Others may have such a name for something else, so there
# must be a text beside it.
_SWITCHES = {"enable_thinking": "", "thinking": "", "reasoning": "<|START_THINKING|>"}


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
    thinking_switch: str | None
    """The variable with which the chat template turns thinking on or off. None: it has none."""
    template_variables: frozenset[str]
    special_tokens: frozenset[str]

    @classmethod
    def of(cls, model: ModelDescription, tool_format: str, reasoning_format: str) -> "Formats":
        """Return the formats of a model. Both names may be `auto`; that of the reasoning format may be `none`."""
        template = model.chat_template or ""
        tools_variable = next((name for name in _TOOLS if name in model.template_variables), None)
        name = _tool_format(model, template, tools_variable) if tool_format == AUTO else tool_format
        return cls(
            tool_format=None if name is None else FORMATS[name],
            reasoning_format=_reasoning_format(template, reasoning_format),
            tools_variable=tools_variable,
            template_writes_calls="tool_calls" in template and _WRITES_NO_CALLS not in template,
            thinking_switch=_thinking_switch(template, model.template_variables),
            template_variables=frozenset(model.template_variables),
            special_tokens=frozenset(model.special_tokens.values()),
        )

    def are_special(self, markers: tuple[str, ...]) -> bool:
        """Whether any of these texts is a special token, which answers leave out unless they are asked not to."""
        return not self.special_tokens.isdisjoint(markers)


def _tool_format(model: ModelDescription, template: str, tools_variable: str | None) -> str | None:
    if tools_variable is None:
        for token in model.special_tokens.values():
            if token in _OF_TOKENS:
                return _OF_TOKENS[token]
    if any(text in template for text in _UNKNOWN):
        return None
    written = _OF_TEMPLATES if tools_variable is not None else _OF_MODELS
    return next((name for *texts, name in written if all(text in template for text in texts)), None)


def _reasoning_format(template: str, name: str) -> ReasoningFormat | None:
    if name == AUTO:
        return next((one for one in REASONING_FORMATS.values() if one.is_of(template)), None)
    return None if name == NONE else REASONING_FORMATS[name]


def _thinking_switch(template: str, variables: Sequence[str]) -> str | None:
    return next((name for name, beside in _SWITCHES.items() if name in variables and beside in template), None)
