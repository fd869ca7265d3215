"""Tells whether two machines have the same checkpoint, before they load parts of it."""

from hashlib import blake2b

from inflight.config import EngineConfig
from inflight.model.loading.checkpoint import Checkpoint

_FILES = (".safetensors", ".bin", ".json", ".model", ".py")
_WINDOWS, _WINDOW_BYTES = 64, 4096


def checkpoint_digest(config: EngineConfig) -> str:
    """Return the commit of a model from the hub, or a digest of the files in a folder.

    Of each file it takes name, size and 64 short parts: it tells checkpoints apart that were trained differently, and
    need not notice if somebody changed a few numbers on purpose.

    Raises:
        UnsupportedModel: It has an adapter.
        ValueError: It has no config, or its files cannot be read.
    """
    checkpoint = Checkpoint.of(config.model, config.revision)
    if checkpoint.commit is not None:
        return checkpoint.commit
    found = blake2b(digest_size=16)
    for path in sorted(checkpoint.folder.glob("*")):
        if path.suffix in _FILES and path.is_file():
            size = path.stat().st_size
            found.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                for start in range(0, size, max(_WINDOW_BYTES, size // _WINDOWS)):
                    file.seek(start)
                    found.update(file.read(_WINDOW_BYTES))
    return found.hexdigest()
