"""Where the files of a model are: in a local folder, or in the cache of the Hugging Face hub."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, resolve_revision, snapshot_download
from huggingface_hub.constants import CONFIG_NAME, SAFETENSORS_INDEX_FILE, SAFETENSORS_SINGLE_FILE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RevisionResolutionError,
)

from inflight.errors import UnsupportedModel

logger = logging.getLogger(__name__)

_ADAPTER_CONFIG = "adapter_config.json"
_ALL_BUT_WEIGHTS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
_ANSWER_SECONDS = 10.0
# HTTP statuses of a hub that has too many requests, or is down.
_BUSY = (429, 500, 502, 503, 504)
_FILES = (*_ALL_BUT_WEIGHTS, "*.safetensors")


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
            if not (found.folder / CONFIG_NAME).is_file():
                raise ValueError(f"model is {model!r}, which has no {CONFIG_NAME}")
            check_readable(found.folder)
        except OSError as error:
            raise ValueError(f"model is {model!r}; its config cannot be read: {error}") from error
        if found.commit is not None:
            logger.info("model %s is at commit %s", model, found.commit)
        return found

    @property
    def commit(self) -> str | None:
        """The commit of which all files are; None for a local folder."""
        return None if self.hub_id is None else self.folder.name

    @property
    def weight_files(self) -> list[Path]:
        """The files of the weights that transformers reads. They may be missing."""
        names = {SAFETENSORS_SINGLE_FILE}
        if (index := self.folder / SAFETENSORS_INDEX_FILE).is_file():
            names = set(json.loads(index.read_text())["weight_map"].values())
        return [self.folder / name for name in sorted(names)]

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


def hub_folder(hub_id: str, revision: str, patterns: tuple[str, ...]) -> Path:
    """Return the folder in the cache with those files of a commit that match. Its name is the commit.

    Where the hub cannot be used, it is the commit that a branch had when the cache was filled.

    Raises:
        OSError: The hub cannot be used and the cache has no copy, or there is no such model.
    """
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
    """Raise PermissionError if this user may not read one of a model's files.

    The library that reads weights says then that there is no such file.
    """
    for path in sorted(folder.iterdir()):
        if path.is_file() and any(map(path.match, _FILES)) and not os.access(path, os.R_OK):
            raise PermissionError(f"the user with the id {os.geteuid()} may not read {path}")


def find(model: str, revision: str) -> Checkpoint:
    """Return the files that a local folder or hub id names, whatever they are. Raises OSError as `hub_folder` does."""
    folder = Path(model)
    if folder.is_dir() or model.startswith((".", "/", "~")):
        return Checkpoint(folder)
    return Checkpoint(hub_folder(model, revision, _ALL_BUT_WEIGHTS), model)
