"""The bodies of POST /tokenize and POST /detokenize, as vLLM has them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from inflight_gateway.chat_request import MAX_MESSAGES, MAX_TOOLS, ChatEnd, ChatMessage, FunctionTool
from inflight_gateway.schemas import TokenIds
from inflight_gateway.strict import Strict


class _Tokenize(Strict):
    model: Annotated[str, Field(min_length=1)] | None = Field(None, description="Default: the model that is served.")
    return_token_strs: bool | None = None


class TokenizeText(_Tokenize):
    """A prompt."""

    prompt: Annotated[str, Field(min_length=1)]
    add_special_tokens: bool = True


class TokenizeChat(_Tokenize, ChatEnd):
    """The messages of a chat."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None

    # With the accepted value it changes nothing.
    add_special_tokens: Literal[False] | None = None


def _form(value: Any) -> str:
    return "a chat" if isinstance(value, dict) and "messages" in value else "a prompt"


TokenizeRequest = Annotated[
    Annotated[TokenizeText, Tag("a prompt")] | Annotated[TokenizeChat, Tag("a chat")], Discriminator(_form)
]


class DetokenizeRequest(Strict):
    """Tokens."""

    model: Annotated[str, Field(min_length=1)] | None = Field(None, description="Default: the model that is served.")
    tokens: TokenIds
