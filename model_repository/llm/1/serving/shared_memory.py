"""How much memory the responses need that Triton shares with this process."""

import shutil

_FOLDER = "/dev/shm"
# With the 20 likeliest tokens at each position, as JSON.
_BYTES_PER_TOKEN = 2_000
_MIB = 2**20


def free_bytes() -> int:
    """Return how much Triton's region can still grow. Linux keeps shared memory in /dev/shm."""
    return shutil.disk_usage(_FOLDER).free


def shortage(max_model_len: int) -> str | None:
    """Return why the shared memory is too small for a model with this context, or None if it suffices.

    Triton's region has one response at a time, however many requests run: it begins with 1 MiB
    (`shm-default-byte-size`) and grows to the largest response so far. The largest is a whole answer with
    log-probabilities; Triton reserves a tenth more.
    """
    needed, free = round(1.1 * max_model_len * _BYTES_PER_TOKEN), free_bytes()
    if needed <= free:
        return None
    return (
        f"{_FOLDER} has {free / _MIB:.1f} MiB free; a whole answer of {max_model_len} tokens with 20 log-probabilities "
        f"each takes {needed / _MIB:.1f} MiB, and n samples n times as much. Responses that do not fit fail. "
        "In Docker, --shm-size gives a container more"
    )
