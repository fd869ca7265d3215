"""The key by which the machines of one model know each other."""

import os

_NAME = "INFLIGHT_RANKS_KEY"
_LEAST_BYTES = 16


def ranks_key() -> bytes:
    """Read it from the environment, where a process list does not show it.

    Raises:
        ValueError: there is none, or it is too short.
    """
    key = os.environ.get(_NAME, "").encode()
    if len(key) < _LEAST_BYTES:
        raise ValueError(
            f"the environment variable {_NAME} has {len(key)} bytes; it must have at least {_LEAST_BYTES}, the same on "
            "all machines of the model (such as from `openssl rand -hex 32`)"
        )
    return key
