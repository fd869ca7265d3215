"""What no tokenizer can read is refused by name."""

from inflight.errors import InvalidRequest


def check_unicode(name: str, text: str) -> None:
    """Refuse text that holds half of a surrogate pair: JSON can escape one, and UTF-8 cannot hold it.

    Raises:
        InvalidRequest: the message names the field.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is not valid Unicode: it holds half of a surrogate pair") from None
