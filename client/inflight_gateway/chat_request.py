"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from inflight_gateway.cache_hints import CacheBreakpoint, CacheControl
from inflight_gateway.schemas import MAX_PARTS, Count, Generation, text_or_list
from inflight_gateway.strict import Always, Never, Strict

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128
"""In one message."""

_IN_PLACE_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "refusal")

_FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
_Text = Annotated[str, Field(min_length=1)]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str

    # Ignored. OpenAI's Agents SDK for JavaScript writes these fields of an answer into the text that it sends back.
    role: Literal["assistant"] | None = None
    tool_calls: list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class RefusalPart(Strict):
    """A part of a message in which the assistant declined to answer. Our models do so in plain text."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What the assistant said."""
        return self.refusal


class ImageUrl(Strict):
    """Where an image is."""

    url: str = Field(description="A data URL with a file in base64. The gateway fetches no others.")
    detail: Literal["auto", "low", "high"] | None = Field(None, description="Ignored: the model's processor decides.")


class ImagePart(Strict):
    """An image in a message."""

    type: Literal["image_url"]
    image_url: ImageUrl
    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


Content = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True), Tag("a list")],
    Discriminator(text_or_list),
]


_MessageContent = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[
        list[Annotated[TextPart | ImagePart | RefusalPart, Field(discriminator="type")]],
        Field(min_length=1, max_length=MAX_PARTS, fail_fast=True),
        Tag("a list"),
    ],
    Discriminator(text_or_list),
]


def _text_of(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class CalledFunction(Strict):
    """The function of a call, and its arguments as JSON."""

    name: _Text
    arguments: str
    parsed_arguments: Any = Field(None, description="openai's parse() adds it to calls. Ignored.")


class ToolCall(Strict):
    """A call in a message of the assistant."""

    id: _Text
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="Of a streamed call that is sent back. Ignored.")


class ChatMessage(Strict):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = Field(
        None, description="Of the assistant."
    )
    tool_call_id: _Text | None = Field(
        None, description="Of a tool, which needs it: the call that it answers.", validate_default=True
    )
    reasoning_content: str | None = Field(None, description="What the assistant thought.")
    reasoning: str | None = Field(None, description="vLLM's name of reasoning_content. It counts if both are given.")
    refusal: str | None = Field(None, description="Of the assistant: that it declined to answer, in place of content.")
    content: _MessageContent | None = Field(
        None,
        description="Needed unless there are tool_calls, reasoning_content or a refusal. Only the user's may have "
        "images, and only the assistant's refusals.",
        validate_default=True,
    )

    # Fields of answers, which clients send back.
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    parsed: Any = Field(None, description="openai's parse() adds it to messages. Ignored.")
    provider_specific_fields: dict[str, Any] | None = Field(
        None, description="litellm adds it to messages that it sends back. Ignored."
    )
    cache_control: CacheControl | None = None

    @field_validator("tool_calls")
    @classmethod
    def _only_of_the_assistant(cls, value: list[ToolCall] | None, info: ValidationInfo) -> list[ToolCall] | None:
        if value and info.data.get("role") != "assistant":
            raise ValueError("it must be absent unless role is assistant")
        return value

    @field_validator("tool_call_id")
    @classmethod
    def _only_of_a_tool(cls, value: str | None, info: ValidationInfo) -> str | None:
        is_tool = info.data.get("role") == "tool"
        if value is not None and not is_tool:
            raise ValueError("it must be absent unless role is tool")
        if value is None and is_tool:
            raise PydanticCustomError("absent", "it is missing, but a message of a tool must have it")
        return value

    @field_validator("refusal")
    @classmethod
    def _said_by_the_assistant(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and info.data.get("role") != "assistant":
            raise ValueError("it must be absent unless role is assistant")
        return value

    @field_validator("content")
    @classmethod
    def _needed_without_others(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and not any(info.data.get(name) for name in _IN_PLACE_OF_CONTENT):
            others = ", ".join(_IN_PLACE_OF_CONTENT)
            raise PydanticCustomError("absent", f"it is missing, but a message with none of {others} must have it")
        parts = value if isinstance(value, list) else []
        if any(isinstance(part, ImagePart) for part in parts) and info.data.get("role") != "user":
            raise ValueError("it must have no images unless role is user")
        if any(isinstance(part, RefusalPart) for part in parts) and info.data.get("role") != "assistant":
            raise ValueError("it must have no refusals unless role is assistant")
        return value

    @property
    def thoughts(self) -> str | None:
        """What the assistant thought, by whichever name it is given."""
        return self.reasoning_content if self.reasoning is None else self.reasoning

    @property
    def parts(self) -> list[TextPart | ImagePart | RefusalPart]:
        """The parts of the content, and the refusal."""
        said = [TextPart(type="text", text=self.content)] if isinstance(self.content, str) else self.content or []
        refused = [RefusalPart(type="refusal", refusal=self.refusal)] if self.refusal else []
        return [*said, *refused]


class Prediction(Strict):
    """A text that the answer may repeat."""

    type: Literal["content"]
    content: Content

    @property
    def text(self) -> str:
        """The content, with its parts joined."""
        return _text_of(self.content)


class FunctionDefinition(Strict):
    """A function that the model may call."""

    name: _FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments. Default: none.")
    strict: bool | None = Field(None, description="Arguments match the schema also where tool_choice is auto.")


class FunctionTool(Strict):
    """A tool. All tools are functions."""

    type: Literal["function"] = "function"
    function: FunctionDefinition
    cache_control: CacheControl | None = None


class FunctionReference(Strict):
    """The name of a function among the tools."""

    name: _FunctionName


class ToolReference(Strict):
    """A tool by its name."""

    type: Literal["function"] = "function"
    function: FunctionReference


class AllowedTools(Strict):
    """The tools of which the model may call any, or must call one."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Strict):
    """A choice of some tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def choice_form(value: Any) -> str:
    """Tell the forms of a choice of tools apart."""
    if isinstance(value, dict):
        return "some tools" if value.get("type") == "allowed_tools" else "a tool"
    return "a word"


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[ToolReference, Tag("a tool")]
    | Annotated[AllowedToolsChoice, Tag("some tools")],
    Discriminator(choice_form),
]


class ChatEnd(Strict):
    """How the prompt of a chat ends, as in vLLM."""

    add_generation_prompt: bool | None = Field(
        None, description="Begin a message of the assistant. Default: true, unless continue_final_message is."
    )
    continue_final_message: bool | None = Field(
        None, description="The answer continues the last message, which is the assistant's."
    )

    @property
    def chat_end(self) -> dict[str, Any]:
        """Return those of the two fields that are given."""
        given = {name: getattr(self, name) for name in ChatEnd.model_fields}
        return {name: value for name, value in given.items() if value is not None}


class ChatRequest(Generation, ChatEnd):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_tokens: Count | None = Field(None, description="Default: as many as the context has room for.")
    max_completion_tokens: Count | None = Field(None, description="Another name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceField | None = Field(None, description="Default: auto where there are tools.")
    parallel_tool_calls: bool | None = Field(None, description="False: at most one call in an answer.")
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = Field(
        None, description="Variables for the model's chat template, such as enable_thinking."
    )
    reasoning_effort: Effort | None = Field(
        None, description="For the chat template. Refused where the template does not use it."
    )
    include_reasoning: bool | None = Field(
        None, description="As in vLLM. False: the answer is without its thoughts, which still count as tokens."
    )
    prediction: Prediction | None = Field(
        None, description="It makes the answer faster where it is right. Ignored where the server takes no drafts."
    )
    # With these values they ask for what there is.
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    verbosity: Literal["medium"] | None = None
    add_special_tokens: Never | None = Field(None, description="The chat template writes them.")
    echo: Never | None = None
    # vllm-router adds these to each chat.
    no_stop_trim: Never | None = None
    return_hidden_states: Never | None = None
    separate_reasoning: Always | None = None
    stream_reasoning: Always | None = None

    @field_validator("max_completion_tokens")
    @classmethod
    def _only_one_of_both(cls, value: int | None, info: ValidationInfo) -> int | None:
        other = info.data.get("max_tokens")
        if value is not None and other not in (None, value):
            raise ValueError(f"it must be max_tokens, {other}, or absent: both are names of one field")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _only_with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("it must be 0 or absent unless logprobs is true")
        return value

    @property
    def wants_logprobs(self) -> bool:
        """See `Generation`."""
        return bool(self.logprobs)

    @property
    def num_likeliest(self) -> int:
        """How many of the tokens at each position the answer lists: all those that were named, and the chosen one."""
        return 1 + len(self.logprob_token_ids) if self.logprob_token_ids else self.top_logprobs or 0
