"""Refuses text for which a tokenizer has no token."""

from collections.abc import Iterator
from contextlib import contextmanager

from inflight.errors import InvalidRequest


@contextmanager
def unknown_text_refused(name: str) -> Iterator[None]:
    """Refuse the field `name` if the tokenizer fails on it in this context.

    Most tokenizers have bytes, or one token, for all that they do not know. Some have neither.

    Raises:
        InvalidRequest: the message has the tokenizer's reason.
    """
    try:
        yield
    except Exception as error:
        # The library tokenizers raises this very class.
        if type(error) is not Exception:
            raise
        raise InvalidRequest(f"{name} has text for which the model's tokenizer has no token: {error}") from error
