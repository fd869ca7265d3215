"""Turns a conversation into the messages of a chat."""

import json
from collections.abc import Iterable, Iterator

from inflight_client import Message
from inflight_gateway.asked_form import invalid
from inflight_gateway.images import content_of, file_in_text
from inflight_gateway.messages_api.content import (
    AssistantMessage,
    ImageBlock,
    InputMessage,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    joined,
)
from inflight_gateway.messages_api.request import Conversation

# Claude Code begins the system prompt with it. It is meant for Anthropic's bills, and differs in each conversation, so
# that none could use the cached prefix of another.
_BILLING = "x-anthropic-billing-header:"


def messages_of(body: Conversation) -> list[Message]:
    """Return the messages, the system prompt first.

    Raises:
        ApiError: the last message has calls, so an answer can neither continue it nor follow it.
    """
    messages: list[Message] = []
    if system := _system(body):
        messages.append({"role": "system", "content": system})
    for message in body.messages:
        messages += _shown(message)
    if messages[-1].get("tool_calls"):
        raise invalid("messages", "messages ends with calls; the results of the tools must follow")
    return messages


def images_of(body: Conversation) -> list[bytes]:
    """Return the images of all messages, in order. Raises ApiError if one is no base64."""
    return [file_in_text(f"{field}.source.data", image.source.data) for field, image in _images(body)]


def _images(body: Conversation) -> Iterator[tuple[str, ImageBlock]]:
    """Yield the field of each image, and the image."""
    for number, message in enumerate(body.messages):
        blocks = [] if isinstance(message.content, str) else message.content
        for index, block in enumerate(blocks):
            field = f"messages[{number}].content[{index}]"
            if isinstance(block, ImageBlock):
                yield field, block
            elif isinstance(block, ToolResultBlock):
                for place, part in enumerate(block.blocks):
                    if isinstance(part, ImageBlock):
                        yield f"{field}.content[{place}]", part


def continues(body: Conversation) -> bool:
    """Whether the answer continues the last message."""
    return body.messages[-1].role == "assistant"


def _system(body: Conversation) -> str:
    given = body.system or ""
    return joined(
        given if isinstance(given, str) else [block for block in given if not block.text.startswith(_BILLING)]
    )


def _shown(message: InputMessage) -> Iterable[Message]:
    match message:
        case AssistantMessage():
            return [_assistant(message)]
        case SystemMessage():
            return [{"role": "system", "content": joined(message.content)}]
    return _user(message)


def _user(message: UserMessage) -> Iterator[Message]:
    """Results of tools are messages of their own. The texts and images between two of them are one message.

    The images of results follow them in a message of the user: chat templates take no others.
    """
    blocks = [TextBlock(type="text", text=message.content)] if isinstance(message.content, str) else message.content
    said: list[str | None] = []
    shown: list[str | None] = []
    """The images of results."""
    for block in blocks:
        if not isinstance(block, ToolResultBlock):
            said += [*shown, block.text if isinstance(block, TextBlock) else None]
            shown = []
            continue
        if said:
            yield {"role": "user", "content": content_of(said, "\n")}
            said = []
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}
        shown += [None] * len(block.images)
    if said or shown:
        yield {"role": "user", "content": content_of([*said, *shown], "\n")}


def _assistant(message: AssistantMessage) -> Message:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    blocks = message.content
    sent: Message = {
        "role": "assistant",
        "content": joined([block for block in blocks if isinstance(block, TextBlock)]),
    }
    if thoughts := "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)):
        sent["reasoning_content"] = thoughts
    if calls := [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]:
        sent["tool_calls"] = calls
    return sent


def _call(block: ToolUseBlock) -> dict[str, object]:
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}
