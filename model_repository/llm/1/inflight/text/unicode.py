"""Refuses text that is not valid Unicode, which no tokenizer can read."""

from inflight.errors import InvalidRequest


def check_unicode(name: str, text: str) -> None:
    """Refuse text that holds half of a surrogate pair, which JSON can express and UTF-8 cannot.

    Raises:
        InvalidRequest: the message names the field.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is not valid Unicode: it holds half of a surrogate pair") from None
