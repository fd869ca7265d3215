"""Which prompts take long to turn into tokens."""

from inflight import TextPair
from serving.parse import ParsedRequest

# Shorter ones take less than some milliseconds.
_LONG_CHARACTERS = 8192
_LONG_MESSAGES = 64


def is_long(parsed: ParsedRequest) -> bool:
    """Whether the prompt must be tokenized, and this may take long."""
    if parsed.embeds is not None:
        return True
    if isinstance(parsed.prompt, TextPair):
        return len(parsed.prompt.query) + len(parsed.prompt.document) > _LONG_CHARACTERS
    if parsed.chat is None:
        return isinstance(parsed.prompt, str) and len(parsed.prompt) > _LONG_CHARACTERS
    messages = parsed.chat.messages
    if not isinstance(messages, list) or parsed.chat.tools is not None:
        return True
    return len(messages) > _LONG_MESSAGES or sum(map(_characters, messages)) > _LONG_CHARACTERS


def _characters(message: object) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    texts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else [content]
    return sum(len(text) for text in texts if isinstance(text, str))
