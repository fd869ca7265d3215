"""Lets a thread go on after a fault in one of its duties."""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Guard:
    """Runs duties that come again and again. The log has each kind of fault of a duty once, not at every run."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, type[Exception]]] = set()

    def run(self, duty: str, action: Callable[[], object]) -> None:
        """Run `action`. An exception of it is logged under the name `duty`, and goes no further."""
        try:
            action()
        except Exception as fault:
            if (duty, type(fault)) not in self._seen:
                self._seen.add((duty, type(fault)))
                logger.exception("%s failed; the server goes on, and this is logged once", duty)
