"""The bodies of POST /v1/messages and of its counter of tokens."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from inflight_gateway.cache_hints import CacheControl
from inflight_gateway.chat_request import MAX_MESSAGES, MAX_TOOLS
from inflight_gateway.messages_api.content import InputMessage, TextBlock
from inflight_gateway.schemas import MAX_PARTS, MAX_STOPS, Authored, Count, ShortText, text_or_list
from inflight_gateway.strict import Strict
from inflight_gateway.strict_json import read_json

_Text = Annotated[str, Field(min_length=1)]
_ToolName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,128}$")]


class ToolItem(Strict):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: _ToolName
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON schema of the arguments.")
    strict: bool | None = Field(None, description="Arguments match the schema also where tool_choice is auto.")
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = Field(None, description="Inputs are always streamed as they are written.")


class AnyToolChoice(Strict):
    """The model may call tools (auto), must (any), or must not (none)."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = Field(None, description="True: at most one call in an answer.")


class OneToolChoice(Strict):
    """The model must call this tool."""

    type: Literal["tool"]
    name: _ToolName
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether the model thinks before it answers, if its chat template can turn that on and off."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = Field(None, description="Not enforced.")
    display: Literal["summarized"] | None = Field(None, description="Thoughts are in the answer as they are.")


class OutputFormat(Strict):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    """How the answer is written."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="For the chat template. Ignored where the template knows no levels."
    )


class ThoughtsEdit(Strict):
    """What is left out of earlier thoughts."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] = Field(description="The chat template decides which of them the model sees.")


class ContextManagement(Strict):
    """What is left out of a long conversation. Only the edit that leaves out nothing is there."""

    edits: Annotated[list[ThoughtsEdit], Field(max_length=16)] | None = None


class Metadata(Strict):
    """On whose behalf the request runs."""

    user_id: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="The tenant of the request, if the gateway has no API keys. Ignored otherwise. Of an object in "
        "JSON, as Claude Code sends it, only `device_id` counts, so that the sessions of one user are one tenant.",
    )

    @property
    def tenant(self) -> str | None:
        """The user whom `user_id` means."""
        try:
            device = read_json(self.user_id or "")["device_id"]
        except (ValueError, RecursionError, TypeError, KeyError):
            return self.user_id
        return device if isinstance(device, str) and device else self.user_id


class Conversation(Authored):
    """What the model is shown, and what its answer may be."""

    model: _Text
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: (
        Annotated[
            Annotated[str, Tag("a text")]
            | Annotated[list[TextBlock], Field(max_length=MAX_PARTS, fail_fast=True), Tag("a list")],
            Discriminator(text_or_list),
        ]
        | None
    ) = None
    tools: Annotated[list[ToolItem], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[AnyToolChoice | OneToolChoice, Field(discriminator="type")] | None = Field(
        None, description="Default: auto where there are tools."
    )
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: CacheControl | None = None
    # A field of this server that Anthropic does not have.
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = Field(
        None, description="Variables for the model's chat template, such as enable_thinking."
    )


class CountTokensRequest(Conversation):
    """The body of POST /v1/messages/count_tokens."""


class MessagesRequest(Conversation):
    """The body of POST /v1/messages."""

    max_tokens: Count
    metadata: Metadata | None = None
    stop_sequences: Annotated[list[ShortText], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="Default: 1.")
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
