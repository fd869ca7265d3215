"""Images in the messages of a chat: they come in the request itself, in base64."""

import base64
import binascii
import re
from itertools import groupby

from inflight_client import Message
from inflight_gateway.asked_form import invalid

PLACE = {"type": "image"}
"""The part of a message's content that stands for an image."""
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)


def file_in_url(field: str, url: str) -> bytes:
    """Return the file in a data URL.

    Raises:
        ApiError: it is another URL. The gateway fetches none, as it would do so with its own rights in its own network.
    """
    head = _DATA_URL.match(url)
    if head is None:
        raise invalid(field, f"{field} is {url[:40]!r}; it must be a data URL, such as data:image/png;base64,...")
    return file_in_text(field, url[head.end() :])


def file_in_text(field: str, text: str) -> bytes:
    """Return the file in base64. Raises ApiError if it is no base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(field, f"{field} is not valid base64: {error}") from error


def content_of(parts: list[str | None], separator: str = "") -> str | list[dict[str, str]]:
    """Return a message's content: texts, and None in the place of each image. Neighbouring texts are joined."""
    content: list[dict[str, str]] = []
    for is_text, run in groupby(parts, lambda part: part is not None):
        if is_text:
            content.append({"type": "text", "text": separator.join(part for part in run if part is not None)})
        else:
            content += [dict(PLACE) for _ in run]
    return content if PLACE in content else "".join(part["text"] for part in content)


def text_of(message: Message) -> str:
    """Return the texts of a message without its images."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
