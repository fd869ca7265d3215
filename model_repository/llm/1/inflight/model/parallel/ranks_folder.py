"""The folder in which the ranks of one machine find each other."""

import tempfile
from pathlib import Path

from inflight.locked_folder import LockedFolder


class RanksFolder(LockedFolder):
    """A folder among the temporary ones. If all ranks are killed at once, the next ranks remove it."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.gettempdir()), "inflight-local-ranks-")
