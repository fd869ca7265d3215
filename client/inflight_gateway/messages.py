"""Converts the messages of a chat for the server."""

from collections.abc import Sequence

from inflight_client import Message
from inflight_gateway.chat_request import ChatMessage


def sent_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return messages as the server takes them."""
    return [_sent(message) for message in messages]


def _sent(message: ChatMessage) -> Message:
    # "developer" is OpenAI's newer name for the same role. The chat templates of models know only "system".
    role = "system" if message.role == "developer" else message.role
    sent: Message = {"role": role, "content": message.text}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            sent[name] = value
    if message.tool_calls:
        sent["tool_calls"] = [call.model_dump(exclude={"index"}) for call in message.tool_calls]
    return sent
