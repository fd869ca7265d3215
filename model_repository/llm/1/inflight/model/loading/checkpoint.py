"""Where the files of a model are: in a local folder, or in the cache of the Hugging Face hub."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import httpx2
from huggingface_hub import HfApi, resolve_revision, snapshot_download
from huggingface_hub.constants import CONFIG_NAME, HF_HUB_CACHE, SAFETENSORS_INDEX_FILE, SAFETENSORS_SINGLE_FILE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RevisionResolutionError,
)
from safetensors import SafetensorError, safe_open

from inflight.errors import UnsupportedModel

logger = logging.getLogger(__name__)

_ADAPTER_CONFIG = "adapter_config.json"
_ALL_BUT_WEIGHTS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
_ANSWER_SECONDS = 10.0
# HTTP statuses of a hub that has too many requests, or is down.
_BUSY = (429, 500, 502, 503, 504)
_LFS_POINTER = b"version https://git-lfs"
_FILES = (*_ALL_BUT_WEIGHTS, "*.safetensors")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


@dataclass(frozen=True)
class Checkpoint:
    """The files of one model."""

    folder: Path
    """Of a model from the hub, it may lack the weights until `fetch_weights`."""
    hub_id: str | None = None

    @classmethod
    def of(cls, model: str, revision: str) -> "Checkpoint":
        """Find the local folder or hub id that `model` names, at a branch, tag or commit of the hub.

        The hub is asked once for the commit, because a branch may move between two downloads.

        Raises:
            UnsupportedModel: It has an adapter.
            ValueError: It has no config, or its files cannot be read.
        """
        try:
            found = find(model, revision)
            if (found.folder / _ADAPTER_CONFIG).is_file():
                raise UnsupportedModel(
                    f"model is {model!r}, which has a LoRA adapter; model must be the one that it changes, and "
                    "lora_modules must name the adapter"
                )
            if found.folder.is_file():
                raise ValueError(
                    f"model is {model!r}, which is a file; it must be a folder with {CONFIG_NAME} and weights in "
                    "safetensors (GGUF is not read)"
                )
            if not found.folder.exists():
                raise ValueError(f"model is {model!r}, a folder that does not exist, so it has no {CONFIG_NAME}")
            if not (found.folder / CONFIG_NAME).is_file():
                raise ValueError(f"model is {model!r}, which has no {CONFIG_NAME}")
        except OSError as error:
            raise ValueError(f"model is {model!r}; its config cannot be read: {error}") from error
        try:
            check_readable(found.folder)
        except OSError as error:
            raise ValueError(f"model is {model!r}; its files cannot be read: {error}") from error
        if found.commit is not None:
            logger.info("model %s is at commit %s", model, found.commit)
        return found

    @property
    def commit(self) -> str | None:
        """The commit of which all files are; None for a local folder."""
        return None if self.hub_id is None else self.folder.name

    @property
    def weight_files(self) -> list[Path]:
        """The files of the weights that transformers reads. They may be missing.

        Raises:
            ValueError: The index, which names them, is damaged.
        """
        if self._index is None:
            return [self.folder / SAFETENSORS_SINGLE_FILE]
        return [self.folder / name for name in sorted(set(_read_index(self._index)["weight_map"].values()))]

    @property
    def _index(self) -> Path | None:
        """The file that says in which file each tensor is; None if one file has all of them."""
        single, index = self.folder / SAFETENSORS_SINGLE_FILE, self.folder / SAFETENSORS_INDEX_FILE
        return None if single.is_file() or not index.is_file() else index

    def check_weights(self) -> None:
        """Check the index and the header of each file of weights. transformers would not say which one is damaged.

        Raises:
            ValueError: One is damaged. The message names it.
        """
        try:
            for file in filter(Path.exists, self.weight_files):
                _check_header(file)
            if self._index is not None and not isinstance(_read_index(self._index).get("metadata"), dict):
                raise ValueError(f"{self._index} has no metadata, without which transformers does not read it")
        except (OSError, ValueError) as error:
            name = self.hub_id or str(self.folder)
            raise ValueError(f"model is {name!r}; its weights cannot be loaded: {error}") from error

    def fetch_weights(self) -> None:
        """Download the weights that transformers will read, if the model is from the hub and the cache lacks them.

        Raises:
            OSError: The hub cannot be used, or does not have these files.
        """
        if self.hub_id is None:
            return
        files = self.weight_files
        if not all(file.is_file() for file in files):
            hub_folder(self.hub_id, self.folder.name, tuple(str(file.relative_to(self.folder)) for file in files))


def hint_at_other_files(folder: Path) -> str:
    """Say in which files weights must be, and which the folder has. Empty if it has the right ones."""
    if (folder / SAFETENSORS_SINGLE_FILE).is_file() or (folder / SAFETENSORS_INDEX_FILE).is_file():
        return ""
    names = sorted(path.name for pattern in _WEIGHTS for path in folder.glob(pattern))
    found = f". The folder has {first_of(names)}" if names else ""
    return (
        f" Weights must be in safetensors: in {SAFETENSORS_SINGLE_FILE}, or in files that {SAFETENSORS_INDEX_FILE} "
        f"names{found}"
    )


def first_of(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _read_index(index: Path) -> dict[str, Any]:
    """Return the content of an index of weights. Raises ValueError if it is damaged."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{index} is damaged, so download it again: it is not JSON: {error}") from error
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise ValueError(f"{index} is damaged, so download it again: its weight_map must name the file of each tensor")
    outside = next((name for name in found.values() if not _is_inside(name)), None)
    if outside is not None:
        raise ValueError(f"{index} has the file {outside!r} in its weight_map; each must be in the model's folder")
    return dict(content)


def _is_inside(name: str) -> bool:
    path = PurePath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _check_header(file: Path) -> None:
    """Raise ValueError if a file of weights has another size than its header says, or no header."""
    if not file.is_file():
        raise ValueError(f"{file} is not a file")
    try:
        with safe_open(file, "pt"):
            pass
    except SafetensorError as error:
        with file.open("rb") as start:
            if start.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise ValueError(
                    f"{file} is a pointer of Git LFS; `git lfs pull` replaces it by the weights"
                ) from error
        raise ValueError(f"{file} is damaged or incomplete, so download it again: {error}") from error


def hub_folder(hub_id: str, revision: str, patterns: tuple[str, ...]) -> Path:
    """Return the folder in the cache with those files of a commit that match. Its name is the commit.

    Where the hub cannot be used, it is the commit that a branch had when the cache was filled.

    Raises:
        OSError: The hub cannot be used and the cache has no copy, or there is no such model or no cache.
    """
    # The library leaves the tilde where HOME is not set and the system does not know the user, as in some containers.
    if HF_HUB_CACHE.startswith("~"):
        raise OSError("this user has no home folder for the cache of the hub; set HF_HOME to a folder")
    obstacle = _obstacle(hub_id, revision)
    if obstacle is not None and not isinstance(obstacle, OfflineModeIsEnabled):
        logger.warning("the hub cannot be used, so %s must be in the cache: %r", hub_id, obstacle)
    is_local = obstacle is not None
    try:
        commit = resolve_revision(hub_id, revision=revision, local_files_only=is_local)
        return Path(
            snapshot_download(hub_id, revision=commit, allow_patterns=list(patterns), local_files_only=is_local)
        )
    except RevisionResolutionError as error:
        raise OSError(f"the cache has no copy of it, and the hub cannot be used: {obstacle}") from error


def _obstacle(hub_id: str, revision: str) -> Exception | None:
    """Return why the hub cannot be used for this model; None if it can. Raises OSError if it has no such model."""
    try:
        # The other functions of the library would wait for ever for a hub that accepts connections and says nothing.
        HfApi().model_info(hub_id, revision=revision, timeout=_ANSWER_SECONDS)
    except HFValidationError as error:
        raise OSError(error) from error
    except (OfflineModeIsEnabled, GatedRepoError, httpx2.TransportError) as error:
        return error
    except HfHubHTTPError as error:
        if error.response.status_code not in _BUSY:
            raise
        return error
    return None


def check_readable(folder: Path) -> None:
    """Raise OSError if one of a model's files is not there behind its name, or if this user may not read it.

    The libraries that read them take these for files that a model does not have.
    """
    for path in sorted(folder.iterdir()):
        if any(map(path.match, _ALL_BUT_WEIGHTS)) and not path.is_file():
            raise OSError(f"{path} is {'not a file' if path.exists() else 'a link to a file that is not there'}")
        if path.is_file() and any(map(path.match, _FILES)) and not os.access(path, os.R_OK):
            raise PermissionError(f"the user with the id {os.geteuid()} may not read {path}")


def find(model: str, revision: str) -> Checkpoint:
    """Return the files that a local folder or hub id names, whatever they are. Raises OSError as `hub_folder` does."""
    folder = Path(model)
    if folder.is_dir() or model.startswith((".", "/", "~")):
        return Checkpoint(folder)
    return Checkpoint(hub_folder(model, revision, _ALL_BUT_WEIGHTS), model)
