"""A folder for as long as a process runs, which does not stay for ever if the process is killed."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK = ".lock"


@contextlib.contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """An empty folder in `root` until the end of the context.

    It first removes the folders in `root` that killed processes have left. So `root` is for nothing else.
    """
    root.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # Together under one lock: nobody removes a folder between its creation and its own lock.
        with _locked(root / _LOCK):
            _remove_abandoned(root)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=root)))
            stack.enter_context(_locked(folder / _LOCK))
        content = folder / "content"
        content.mkdir()
        yield content


def _remove_abandoned(root: Path) -> None:
    for lock in root.glob(f"*/{_LOCK}"):
        # The kernel drops a lock with its process, however that ended. One that ends now removes its folder itself.
        with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(lock, wait=False):
            shutil.rmtree(lock.parent)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
