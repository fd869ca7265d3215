"""The setting `lora_folder`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from inflight.lora.lora_modules import MAX_NAME_CHARACTERS

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

Version: TypeAlias = tuple[int, ...]
"""The time of the last change and the size of each file of an adapter."""


class LoraFolder:
    """A folder with an adapter in each subfolder. Adapters may be added, replaced and removed at any time."""

    def __init__(self, path: str, taken: Mapping[str, object]) -> None:
        """The names that are `taken` mean other adapters.

        Raises:
            ValueError: it is no folder, or cannot be read.
        """
        self._path, self._taken = Path(path).expanduser(), taken
        try:
            os.listdir(self._path)
        except OSError as error:
            raise ValueError(f"lora_folder is {path!r}; it cannot be read: {error.strerror}") from error

    def names(self) -> list[str]:
        """Return the names of all adapters, in order. Empty while the folder cannot be read."""
        try:
            found = os.listdir(self._path)
        except OSError:  # It may be on another machine, and come back.
            return []
        return sorted(name for name in found if name not in self._taken and self.version(name) is not None)

    def files(self, name: str) -> Path:
        """Return the folder of an adapter's files."""
        return self._path / name

    def version(self, name: str) -> Version | None:
        """Return something that changes with the adapter's files; None if there is no such adapter."""
        # A client chooses the name. It must not lead out of the folder.
        if not name or name.startswith(".") or "/" in name or "\0" in name or len(name) > MAX_NAME_CHARACTERS:
            return None
        try:
            stats = [os.stat(self._path / name / file) for file in (CONFIG, WEIGHTS)]
        except OSError:
            return None
        return tuple(number for stat in stats for number in (stat.st_mtime_ns, stat.st_size))
