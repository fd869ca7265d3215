"""The message by which rank 0 tells the other ranks what to do in a step: numbers only, nothing to unpickle."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from inflight.model.batch_arrays import BatchArrays, Ints
from inflight.scheduler.plan import StepPlan

_ARRAYS = [each.name for each in fields(BatchArrays)]
_TABLES = _ARRAYS.index("block_tables")
_COPIES = ("swapped_out", "forked", "swapped_in")


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Places:
    """Where images and embeddings go in a batch of T tokens. No numbers stand for None.

    The features of images and the embeddings themselves are not in a message: rank 0 broadcasts them.
    """

    positions: Ints = field(default_factory=_none)
    """This and the next three are explained in `BatchImages`."""
    grid: Ints = field(default_factory=_none)
    """[dimensions * T]."""
    rows: Ints = field(default_factory=_none)
    sees_to: Ints = field(default_factory=_none)
    embeds: Ints = field(default_factory=_none)
    """[embeddings], the indices of the tokens that embeddings replace."""


_PLACES = [each.name for each in fields(Places)]


@dataclass(frozen=True)
class StepMessage:
    """A step's batch and the block copies before it. Requests stay on rank 0, which samples.

    As int64: the length of each array and the number of rows of the block tables, then the arrays one after the other.
    """

    arrays: BatchArrays
    places: Places
    swapped_out: Sequence[tuple[int, int]]
    forked: Sequence[tuple[int, int]]
    swapped_in: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, plan: StepPlan, arrays: BatchArrays, places: Places) -> "StepMessage":
        """`arrays` and `places` are the batch of the plan."""
        return cls(arrays, places, plan.swapped_out, plan.forked, plan.swapped_in)

    def encode(self) -> Ints:
        """Return the message [numbers]."""
        parts = [getattr(self.arrays, name).reshape(-1) for name in _ARRAYS]
        parts += [getattr(self.places, name) for name in _PLACES]
        parts += [np.array(getattr(self, name), dtype=np.int64).reshape(-1) for name in _COPIES]
        header = np.array([*map(len, parts), len(self.arrays.block_tables)], dtype=np.int64)
        return np.concatenate([header, *parts])

    @classmethod
    def decode(cls, message: Ints) -> "StepMessage":
        """The opposite of `encode`."""
        header, rest = np.split(message, [len(_ARRAYS) + len(_PLACES) + len(_COPIES) + 1])
        parts = iter(np.split(rest, np.cumsum(header[:-1]))[:-1])
        arrays = [next(parts) for _ in _ARRAYS]
        arrays[_TABLES] = arrays[_TABLES].reshape(header[-1], -1)
        places = Places(*(next(parts) for _ in _PLACES))
        pairs = ([(int(a), int(b)) for a, b in each.reshape(-1, 2)] for each in parts)
        return cls(BatchArrays(*arrays), places, *pairs)
