"""Imports of large libraries in less time."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import without looking for garbage, and never look for it among what is there at the end.

    The modules of torch and transformers are more than half a million objects, and all of them stay. To look through
    them takes an eighth of the time of their import. Later it would stop all threads for half a second each time.
    """
    # Some libraries count what is left of them at the end of the process, and report it as leaked.
    atexit.register(gc.unfreeze)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
