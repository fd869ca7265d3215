"""The folder of the blocks on disk, and the key that names them."""

import os
import secrets
import stat
from pathlib import Path

from inflight.private_files import check_private, private_folder

_KEY = "key"
_KEY_BYTES = 32


def open_folder(path: str) -> Path:
    """Return the folder with an absolute path. It is created if it is missing.

    Raises:
        ValueError: it cannot be used, or other users can read it or write to it: what it holds tells prompts.
    """
    folder = Path(os.path.realpath(os.path.expanduser(path)))
    try:
        private_folder(folder)
    except OSError as error:
        raise ValueError(f"kv_offloading_path is {path!r}: {error}") from error
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"kv_offloading_path is {path!r}: other users can read it; `chmod 700` it, or name a new one")
    return folder


def hash_key(folder: Path) -> bytes:
    """Return the secret key of the folder, see `BlockHasher`. It is random, and made by the first engine that asks.

    Raises:
        ValueError: the file with the key is damaged or not private, or cannot be written.
    """
    path = folder / _KEY
    if not path.exists():
        draft = folder / f"{_KEY}.{secrets.token_hex(8)}"
        try:
            draft.touch(mode=0o600)
            with open(draft, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())  # A key that a power failure has cut would keep every engine from starting.
            os.link(draft, path)  # Unlike a rename, this fails if another engine was faster.
        except FileExistsError:
            pass
        except OSError as error:
            raise ValueError(f"kv_offloading_path: no key can be written to {folder}: {error}") from error
        finally:
            draft.unlink(missing_ok=True)
    try:
        check_private(path)
    except PermissionError as error:
        raise ValueError(f"kv_offloading_path: {error}") from error
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(
            f"kv_offloading_path: {path} has {len(key)} bytes, not {_KEY_BYTES}; remove it and start again"
        )
    return key
