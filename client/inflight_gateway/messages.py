"""Converts the messages of a chat for the server."""

from collections.abc import Sequence
from typing import Any

from inflight_client import Message
from inflight_gateway.chat_request import ChatMessage, ImagePart
from inflight_gateway.images import content_of, file_in_url


def sent_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return messages as the server takes them."""
    return [_sent(message) for message in messages]


def images_of(messages: Sequence[ChatMessage]) -> list[bytes]:
    """Return the images of all messages, in order. Raises ApiError if one cannot be read."""
    return [
        file_in_url(f"messages[{number}].content[{index}].image_url.url", part.image_url.url)
        for number, message in enumerate(messages)
        for index, part in enumerate(message.parts)
        if isinstance(part, ImagePart)
    ]


def _sent(message: ChatMessage) -> Message:
    # "developer" is OpenAI's newer name for the same role. The chat templates of models know only "system".
    role = "system" if message.role == "developer" else message.role
    texts = [None if isinstance(part, ImagePart) else part.text for part in message.parts]
    has_content = bool(texts) or not message.tool_calls
    sent: Message = {"role": role, "content": content_of(texts) if has_content else None}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            sent[name] = value
    if message.thoughts is not None:
        sent["reasoning_content"] = message.thoughts
    if message.tool_calls:
        ignored: dict[str, Any] = {"index": True, "function": {"parsed_arguments"}}
        sent["tool_calls"] = [call.model_dump(exclude=ignored) for call in message.tool_calls]
    return sent
