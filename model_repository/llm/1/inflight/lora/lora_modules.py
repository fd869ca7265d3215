"""The setting `lora_modules`."""

from collections.abc import Mapping
from typing import Any

MAX_ADAPTERS = 256
MAX_NAME_CHARACTERS = 256


def check_lora_modules(modules: Mapping[str, Any]) -> None:
    """Check a mapping of names of adapters to folders or hub ids.

    Raises:
        ValueError: a name or a folder is not usable, or there are too many.
    """
    if len(modules) > MAX_ADAPTERS:
        raise ValueError(f"lora_modules has {len(modules)} adapters; it must have at most {MAX_ADAPTERS}")
    for name, folder in modules.items():
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise ValueError(
                f"lora_modules has a name of {len(name)} characters; it must have 1 to {MAX_NAME_CHARACTERS}"
            )
        if not isinstance(folder, str) or not folder:
            raise ValueError(f"lora_modules[{name!r}] is {folder!r}; it must be a folder or a hub id")
