"""The format of the log: one line per message, however long the names and values of clients are.

A traceback follows its message in lines that begin with a space.
"""

import logging

_LONGEST_MESSAGE = 2_000
_LONGEST_TRACEBACK = 10_000


class LogFormat(logging.Formatter):
    """Cuts the middle out of long messages and tracebacks, and escapes line breaks and other control characters.

    Messages quote what clients send. So nobody can fill the log with one request, or write a line that looks like
    another message.
    """

    def __init__(self) -> None:
        super().__init__("%(levelname).1s %(asctime)s %(name)s] %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        return _escaped(_cut(super().formatMessage(record), _LONGEST_MESSAGE))

    def formatException(self, ei: object) -> str:
        """Return a traceback, whose errors may quote what clients send, too."""
        text = _cut(super().formatException(ei), _LONGEST_TRACEBACK)  # type: ignore[arg-type]
        return "\n".join(f"  {_escaped(line)}" for line in text.split("\n"))


def _escaped(line: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters ... {text[-half:]}"
