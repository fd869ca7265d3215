"""Turns the input of a request into the messages of a chat."""

from collections.abc import Iterator, Sequence

from inflight_client import Message
from inflight_gateway.images import content_of, file_in_url
from inflight_gateway.responses_api.function_name import FunctionName
from inflight_gateway.responses_api.input_items import (
    CallItem,
    InputImage,
    InputItem,
    MessageItem,
    ReasoningItem,
    ResultItem,
)
from inflight_gateway.responses_api.request import ResponsesRequest


def messages_of(body: ResponsesRequest) -> list[Message]:
    """Return the messages. The instructions begin the system message."""
    items = [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages = _messages(items)
    if body.instructions:
        if messages[0]["role"] == "system":
            messages[0] = {**messages[0], "content": f"{body.instructions}\n\n{messages[0]['content']}"}
        else:
            messages.insert(0, {"role": "system", "content": body.instructions})
    return messages


def images_of(body: ResponsesRequest) -> list[bytes]:
    """Return the images of the input, in order. Raises ApiError if one cannot be read."""
    if isinstance(body.input, str):
        return []
    return [file_in_url(f"{field}.image_url", image.image_url) for field, image in _images(body.input)]


def _images(items: Sequence[InputItem]) -> Iterator[tuple[str, InputImage]]:
    """Yield the field of each image, and the image."""
    for number, item in enumerate(items):
        if isinstance(item, MessageItem | ResultItem):
            name = "content" if isinstance(item, MessageItem) else "output"
            for index, part in enumerate(item.parts):
                if isinstance(part, InputImage):
                    yield f"input[{number}].{name}[{index}]", part


def _messages(items: Sequence[InputItem]) -> list[Message]:
    """What an assistant thinks, says and calls are items of their own; together they are one message.

    What it thinks and says after a call belongs to the message, too: the results of its calls follow the message.

    The images in outputs of tools follow these in a message of the user: chat templates take no others.
    """
    messages: list[Message] = []
    turn: Message | None = None
    """The assistant's message that is not complete."""
    shown = 0
    """How many images the last outputs of tools have."""
    for item in items:
        if shown and not isinstance(item, ResultItem):
            messages.append({"role": "user", "content": content_of([None] * shown)})
            shown = 0
        if isinstance(item, ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant"):
            if turn is None or (turn["content"] and not turn.get("tool_calls")):
                turn = {"role": "assistant", "content": ""}
                messages.append(turn)
            if isinstance(item, MessageItem):
                turn["content"] = _continued(turn["content"], item.text)
            else:
                turn["reasoning_content"] = _continued(turn.get("reasoning_content"), item.text)
        elif isinstance(item, CallItem):
            if turn is None:
                turn = {"role": "assistant", "content": ""}
                messages.append(turn)
            function = {"name": FunctionName(item.name, item.namespace).shown, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            turn["tool_calls"] = [*turn.get("tool_calls", ()), call]
        else:
            turn = None
            messages.append(_message(item))
            if isinstance(item, ResultItem):
                shown += sum(isinstance(part, InputImage) for part in item.parts)
    if shown:
        messages.append({"role": "user", "content": content_of([None] * shown)})
    return messages


def _continued(earlier: object, text: str) -> str:
    """Return a text of the assistant with what it added to it."""
    return f"{earlier}\n{text}" if earlier and text else str(earlier or text)


def _message(item: MessageItem | ResultItem) -> Message:
    if isinstance(item, ResultItem):
        return {"role": "tool", "tool_call_id": item.call_id, "content": item.text}
    content = content_of([None if isinstance(part, InputImage) else part.text for part in item.parts])
    return {"role": "system" if item.role == "developer" else item.role, "content": content}
