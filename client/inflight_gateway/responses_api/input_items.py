"""The items of a conversation, as a client sends them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from inflight_gateway.cache_hints import CacheBreakpoint
from inflight_gateway.schemas import MAX_PARTS, text_or_list
from inflight_gateway.strict import Strict

_Text = Annotated[str, Field(min_length=1)]
_Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Strict):
    """A part of a message, or of what a tool has answered."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputImage(Strict):
    """An image in a message."""

    type: Literal["input_image"]
    image_url: str = Field(description="A data URL with a file in base64. The gateway fetches no others.")
    detail: Literal["auto", "low", "high"] | None = Field(None, description="Ignored: the model's processor decides.")
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class OutputText(Strict):
    """A part of a message of the assistant. The gateway sends it, and clients send it back."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = Field(None, description="Of an answer that is sent back. Ignored.")
    parsed: Any = Field(None, description="openai's parse() adds it. Ignored.")


class Refusal(Strict):
    """A part of a message in which the assistant declined to answer. Our models do so in plain text."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What the assistant said."""
        return self.refusal


_Part = Annotated[InputText | InputImage | OutputText | Refusal, Field(discriminator="type")]
_Content = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[_Part], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True), Tag("a list")],
    Discriminator(text_or_list),
]
_ResultPart = Annotated[InputText | InputImage, Field(discriminator="type")]
_Result = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[_ResultPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True), Tag("a list")],
    Discriminator(text_or_list),
]


class MessageItem(Strict):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Content
    id: str | None = None
    status: _Status | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        if value == "item_reference":
            raise ValueError("answers are not stored, so it must be a whole item; clients send those if store is false")
        return value

    @field_validator("content")
    @classmethod
    def _parts_of_the_role(cls, value: Any, info: ValidationInfo) -> Any:
        parts, role = value if isinstance(value, list) else [], info.data.get("role")
        if role != "user" and any(isinstance(part, InputImage) for part in parts):
            raise ValueError("it must have no images unless role is user")
        if role != "assistant" and any(isinstance(part, Refusal) for part in parts):
            raise ValueError("it must have no refusals unless role is assistant")
        return value

    @property
    def parts(self) -> "list[InputText | InputImage | OutputText | Refusal]":
        """The parts of the content."""
        if isinstance(self.content, str):
            return [InputText(type="input_text", text=self.content)]
        return self.content

    @property
    def text(self) -> str:
        """The texts of the content, joined."""
        return "".join(part.text for part in self.parts if not isinstance(part, InputImage))


class CallItem(Strict):
    """A call of the assistant."""

    type: Literal["function_call"]
    call_id: _Text
    name: _Text
    namespace: str | None = Field(None, description="That of the function, if it is in one.")
    arguments: str
    parsed_arguments: Any = Field(None, description="openai's parse() adds it. Ignored.")
    id: str | None = None
    status: _Status | None = None


class ResultItem(Strict):
    """What a tool has answered."""

    type: Literal["function_call_output"]
    call_id: _Text
    output: _Result
    id: str | None = None
    status: _Status | None = None

    @property
    def parts(self) -> "list[InputText | InputImage]":
        """The parts of the output."""
        return [InputText(type="input_text", text=self.output)] if isinstance(self.output, str) else self.output

    @property
    def text(self) -> str:
        """The texts of the output, joined."""
        return "".join(part.text for part in self.parts if not isinstance(part, InputImage))


class ReasoningText(Strict):
    """A part of a thought."""

    type: Literal["reasoning_text"]
    text: str


class SummaryText(Strict):
    """A part of a summary."""

    type: Literal["summary_text"]
    text: str


class ReasoningItem(Strict):
    """What the assistant thought."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Annotated[list[SummaryText], Field(max_length=MAX_PARTS, fail_fast=True)] | None = Field(
        None, description="Stands for the thought if there is no content."
    )
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    encrypted_content: None = None
    status: _Status | None = None

    @property
    def text(self) -> str:
        """The thought, with its parts joined."""
        return "".join(part.text for part in self.content or self.summary or ())


_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _kind(value: Any) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else "message"
    if kind == "item_reference":
        return "message"  # It has an error of its own.
    return kind if kind in _KINDS else None


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="unknown_kind",
        custom_error_message=f"its type must be one of {', '.join(map(repr, _KINDS))}",
    ),
]
