"""The message by which rank 0 tells the other ranks what to do in a step: numbers only, nothing to unpickle."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from inflight.model.batch_arrays import BatchArrays, Ints
from inflight.scheduler.plan import StepPlan

_ARRAYS = [field.name for field in fields(BatchArrays)]
_TABLES = _ARRAYS.index("block_tables")
_COPIES = ("swapped_out", "forked", "swapped_in")


@dataclass(frozen=True)
class StepMessage:
    """A step's batch and the block copies before it. Requests stay on rank 0, which samples.

    As int64: the length of each array and the number of rows of the block tables, then the arrays one after the other.
    """

    arrays: BatchArrays
    swapped_out: Sequence[tuple[int, int]]
    forked: Sequence[tuple[int, int]]
    swapped_in: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, plan: StepPlan, arrays: BatchArrays) -> "StepMessage":
        """`arrays` is the batch of the plan."""
        return cls(arrays, plan.swapped_out, plan.forked, plan.swapped_in)

    def encode(self) -> Ints:
        """Return the message [numbers]."""
        parts = [getattr(self.arrays, name).reshape(-1) for name in _ARRAYS]
        parts += [np.array(getattr(self, name), dtype=np.int64).reshape(-1) for name in _COPIES]
        header = np.array([*map(len, parts), len(self.arrays.block_tables)], dtype=np.int64)
        return np.concatenate([header, *parts])

    @classmethod
    def decode(cls, message: Ints) -> "StepMessage":
        """The opposite of `encode`."""
        header, rest = np.split(message, [len(_ARRAYS) + len(_COPIES) + 1])
        parts = np.split(rest, np.cumsum(header[:-1]))[:-1]
        arrays, copies = parts[: len(_ARRAYS)], parts[len(_ARRAYS) :]
        arrays[_TABLES] = arrays[_TABLES].reshape(header[-1], -1)
        pairs = ([(int(a), int(b)) for a, b in each.reshape(-1, 2)] for each in copies)
        return cls(BatchArrays(*arrays), *pairs)
