"""The body of POST /v1/responses. Fields of what is not there take only values that ask for nothing."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationInfo, field_validator

from inflight_gateway.cache_hints import CacheOptions
from inflight_gateway.chat_request import MAX_MESSAGES, MAX_TOOLS, Effort, choice_form
from inflight_gateway.responses_api.input_items import InputItem
from inflight_gateway.schemas import Authored, Count, Metadata, Sampled, text_or_list
from inflight_gateway.strict import Never, Strict

_LOGPROBS = "message.output_text.logprobs"
_Text = Annotated[str, Field(min_length=1)]
_Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
_Input = Annotated[
    Annotated[_Text, Tag("a text")]
    | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), Tag("a list")],
    Discriminator(text_or_list),
]


class TextFormat(Strict):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="Only with the type json_schema.")
    strict: bool | None = Field(None, description="The schema is enforced in any case.")


class TextOptions(Strict):
    """How the answer is written."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Strict):
    """How much the model thinks."""

    effort: Effort | None = Field(
        None, description="For the chat template. Refused where the template does not use it."
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Ignored: the answer has the thoughts themselves."
    )


class FunctionToolItem(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: _FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="Default: true. Arguments match the schema in any case then.")


class NamespaceItem(Strict):
    """Functions whose names are told apart from others by that of their namespace. Calls of them say both names."""

    type: Literal["namespace"]
    name: _FunctionName
    description: str | None = None
    tools: Annotated[list[FunctionToolItem], Field(min_length=1, max_length=MAX_TOOLS)]


class WebSearchItem(BaseModel):
    """OpenAI's own search. The model does not see it, as the gateway cannot search."""

    type: Literal["web_search", "web_search_preview"]


ToolItem = Annotated[FunctionToolItem | NamespaceItem | WebSearchItem, Field(discriminator="type")]


class FunctionChoice(Strict):
    """A tool by its name."""

    type: Literal["function"]
    name: _FunctionName


class AllowedToolsChoiceItem(Strict):
    """The tools of which the model may call any, or must call one."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS)]


_ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[FunctionChoice, Tag("a tool")]
    | Annotated[AllowedToolsChoiceItem, Tag("some tools")],
    Discriminator(choice_form),
]


class ResponseStreamOptions(Strict):
    """What a stream contains in addition to the answer."""

    include_usage: bool | None = Field(None, description="Ignored: the last event has the usage in any case.")
    include_obfuscation: Never | None = None


class ResponsesRequest(Authored, Sampled):
    """The body of POST /v1/responses."""

    input: _Input
    instructions: str | None = None
    max_output_tokens: Count | None = Field(None, description="Default: as many as the context has room for.")
    text: TextOptions | None = None
    tools: Annotated[list[ToolItem], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: _ToolChoice | None = Field(None, description="Default: auto where there are tools.")
    parallel_tool_calls: bool | None = Field(None, description="False: at most one call in an answer.")
    include: Annotated[list[_Included], Field(max_length=16)] | None = Field(
        None, description="Log-probabilities of messages. Thoughts are in the answer in any case, and not encrypted."
    )
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description=f"How many of the likeliest tokens each position has. Needs {_LOGPROBS} in include."
    )
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None

    # Fields of this server that OpenAI does not have.
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = Field(
        None, description="Variables for the model's chat template, such as enable_thinking."
    )

    # Clients send these fields. With the accepted values they change nothing.
    metadata: Metadata | None = None
    store: Never | None = Field(None, description="Answers are never stored.")
    background: Never | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    client_metadata: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: str | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _only_with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and _LOGPROBS not in (info.data.get("include") or ()):
            raise ValueError(f"it must be 0 or absent unless include has {_LOGPROBS}")
        return value

    @property
    def wants_logprobs(self) -> bool:
        """Whether messages of the answer have log-probabilities."""
        return _LOGPROBS in (self.include or ())
