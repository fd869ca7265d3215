"""The messages of a conversation, as a client sends them."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag

from inflight_gateway.cache_hints import CacheControl
from inflight_gateway.schemas import MAX_PARTS, text_or_list
from inflight_gateway.strict import Strict

_Text = Annotated[str, Field(min_length=1)]


class TextBlock(Strict):
    """A text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ImageSource(Strict):
    """A file in base64."""

    type: Literal["base64"]
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: str


class ImageBlock(Strict):
    """An image of the user."""

    type: Literal["image"]
    source: ImageSource
    cache_control: CacheControl | None = None


class ThinkingBlock(Strict):
    """What the assistant thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Ignored.")


class ToolUseBlock(Strict):
    """A call of the assistant."""

    type: Literal["tool_use"]
    id: _Text
    name: _Text
    input: dict[str, Any]
    cache_control: CacheControl | None = None


_ResultBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ToolResultBlock(Strict):
    """What a tool has answered."""

    type: Literal["tool_result"]
    tool_use_id: _Text
    content: (
        Annotated[
            Annotated[str, Tag("a text")]
            | Annotated[list[_ResultBlock], Field(max_length=MAX_PARTS, fail_fast=True), Tag("a list")],
            Discriminator(text_or_list),
        ]
        | None
    ) = None
    is_error: bool | None = Field(None, description="Ignored: the model reads the content.")
    cache_control: CacheControl | None = None

    @property
    def blocks(self) -> "list[TextBlock | ImageBlock]":
        """The content."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content or []

    @property
    def text(self) -> str:
        """The texts of the content, joined."""
        return joined([block for block in self.blocks if isinstance(block, TextBlock)])

    @property
    def images(self) -> list[ImageBlock]:
        """The images of the content."""
        return [block for block in self.blocks if isinstance(block, ImageBlock)]


_UserBlock = Annotated[TextBlock | ImageBlock | ToolResultBlock, Field(discriminator="type")]
_AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]
_Block = TypeVar("_Block")
_Content = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[_Block], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True), Tag("a list")],
    Discriminator(text_or_list),
]


class UserMessage(Strict):
    """A message of the user, with what tools have answered."""

    role: Literal["user"]
    content: _Content[_UserBlock]


class AssistantMessage(Strict):
    """A message of the assistant. The answer continues it if it is the last one."""

    role: Literal["assistant"]
    content: _Content[_AssistantBlock]


class SystemMessage(Strict):
    """Instructions that begin to apply in the middle of a conversation."""

    role: Literal["system"]
    content: _Content[TextBlock]


InputMessage = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]


def joined(content: str | list[TextBlock]) -> str:
    """Return a content with its texts joined by line breaks."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
