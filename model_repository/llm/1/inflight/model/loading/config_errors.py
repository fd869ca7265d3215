"""Says in one line why a config is refused. The errors of libraries rarely name a field."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME

_CHARACTERS = 600
"""Some errors list all models of transformers."""


def reason(folder: str, error: Exception) -> str:
    """Return an error's kind and text, and the fields of config.json whose text it quotes."""
    try:
        written = json.loads((Path(folder) / CONFIG_NAME).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return one_line(error)
    if not isinstance(written, dict):
        return f"{CONFIG_NAME} must be a JSON object"
    text = str(error)
    fields = [field for field, value in _texts("", written) if repr(value) in text and field not in text]
    return one_line(error) + (f" ({CONFIG_NAME} has it in {' and '.join(fields)})" if fields else "")


def one_line(error: Exception) -> str:
    """Return an error's text, and its kind unless the text is a sentence; of others it may be a bare name."""
    kind = "" if type(error) in (OSError, ValueError) else f"{type(error).__name__}: "
    return textwrap.shorten(f"{kind}{error}", _CHARACTERS, placeholder=" ...")


def _texts(prefix: str, fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _texts(f"{prefix}{name}.", value)
        elif isinstance(value, str):
            yield f"{prefix}{name}", value
