"""How a batch is divided for layers with recurrent states, which compute the tokens of a sequence in order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from inflight.kv_cache.recurrent_states import Snapshot, StatePlan
from inflight.model.batch_arrays import BatchArrays

_MAX_GAPS = 3


@dataclass(frozen=True)
class Segment:
    """Tokens that a layer computes in one call: one token each of many sequences, or many tokens of one sequence."""

    first: int
    """Index of the first token in the batch. The others follow it."""
    end: int
    slots: Sequence[int]
    """The slots of the sequences' states. If there are many, each has one token."""
    continues: bool
    """Whether the sequences have states from before."""
    num_prompt: Sequence[int]
    """How many tokens of each sequence are part of its prompt. The others, which follow, are output."""
    snapshots: Sequence[tuple[int, int]] = ()
    """Pairs of a slot and the slot to copy it to afterwards."""

    @property
    def has_many(self) -> bool:
        """Whether there are many sequences."""
        return len(self.slots) > 1

    @property
    def has_single_tokens(self) -> bool:
        """Whether each sequence has one token."""
        return self.end - self.first == len(self.slots)

    def tokens(self) -> "list[Segment]":
        """Return a segment for each token of one sequence that has a state. Otherwise return this segment."""
        if self.has_many or not self.continues:
            return [self]
        return self.cut(range(self.first + 1, self.end + 1))

    def as_generated(self) -> "list[Segment]":
        """Return segments without both prompt and output, and with one output token of each sequence at most."""
        if not self.has_many:
            output = self.first + self.num_prompt[0]
            prompt = [output] if output > self.first else []
            return self.cut([*prompt, *range(output + 1, self.end + 1)])
        changes = (row for row in range(1, len(self.slots)) if self.num_prompt[row] != self.num_prompt[row - 1])
        return [self.rows(slice(*rows)) for rows in pairwise([0, *changes, len(self.slots)])]

    def cut(self, ends: Sequence[int]) -> "list[Segment]":
        """Cut the tokens of one sequence at the ends of parts, the last of which is the end of the segment."""
        output = self.first + self.num_prompt[0]
        return [
            replace(
                self,
                first=first,
                end=end,
                continues=self.continues or first > self.first,
                num_prompt=[max(0, min(output, end) - first)],
                snapshots=self.snapshots if end == self.end else (),
            )
            for first, end in pairwise([self.first, *ends])
        ]

    def rows(self, rows: slice) -> "Segment":
        """Return the segment of some of many sequences."""
        slots = self.slots[rows]
        return replace(
            self,
            first=self.first + rows.start,
            end=self.first + rows.stop,
            slots=slots,
            num_prompt=self.num_prompt[rows],
            snapshots=[pair for pair in self.snapshots if pair[0] in slots],
        )


@dataclass(frozen=True)
class BatchStates:
    """What a batch does with states."""

    copies: Sequence[tuple[int, int]]
    """See `StatePlan`."""
    segments: Sequence[Segment]
    """They have all tokens of the batch, in order."""
    freed: Sequence[int] = ()
    """See `StatePlan`."""

    @property
    def num_slots(self) -> int:
        """How many slots there must be."""
        pairs = [*self.copies, *(pair for segment in self.segments for pair in segment.snapshots)]
        return 1 + max([slot for segment in self.segments for slot in segment.slots] + [max(pair) for pair in pairs])

    @classmethod
    def of(cls, plan: StatePlan, arrays: BatchArrays) -> "BatchStates":
        """`arrays` is the batch of the step."""
        starts, ends = arrays.query_starts.tolist(), arrays.context_lens.tolist()
        return cls(plan.copies, _segments(plan, arrays.order.tolist(), starts, ends), plan.freed)


def _runs(slots: Sequence[int], offset: int) -> list[tuple[int, int]]:
    """Cut rows at gaps between their slots: the states of a run need not be copied together.

    With many gaps, the rows stay together. Return the first row and the row after the last one of each run.
    """
    gaps = [row for row in range(1, len(slots)) if slots[row] != slots[row - 1] + 1]
    cuts = [0, *(gaps if len(gaps) <= _MAX_GAPS else ()), len(slots)]
    return [(offset + first, offset + end) for first, end in pairwise(cuts) if first < end]


def _segments(plan: StatePlan, order: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[Segment]:
    """Divide a batch of R rows. Rows with one token come first, and of these, new ones before others.

    Args:
        plan: the states of the step's requests.
        order: [R], the index of each row's request in the plan.
        starts: [R + 1], the first token of each row.
        ends: [R], the number of cached and new tokens of each row.
    """
    snapshots: dict[int, list[Snapshot]] = {}
    for snapshot in plan.snapshots:
        snapshots.setdefault(snapshot.row, []).append(snapshot)
    slots = [plan.slots[index] for index in order]
    prompts = [plan.prompt_lens[index] for index in order]
    lengths = np.diff(starts).tolist()
    num_single, num_new = lengths.count(1), ends[: lengths.count(1)].count(1)
    segments = []
    for first, end in (*_runs(slots[:num_new], 0), *_runs(slots[num_new:num_single], num_new)):
        copies = [(slots[row], each.slot) for row in range(first, end) for each in snapshots.get(order[row], ())]
        num_prompt = [int(ends[row] <= prompts[row]) for row in range(first, end)]
        segments.append(Segment(first, end, slots[first:end], ends[first] > 1, num_prompt, copies))
    for row in range(num_single, len(slots)):
        first, offset = starts[row], starts[row + 1] - ends[row]
        num_prompt = [max(0, min(starts[row + 1], prompts[row] + offset) - first)]
        whole = Segment(first, starts[row + 1], slots[row : row + 1], first > offset, num_prompt)
        kept = {each.end + offset: [(slots[row], each.slot)] for each in snapshots.get(order[row], ())}
        parts = whole.cut(sorted({*kept, whole.end}))
        segments += [replace(part, snapshots=kept.get(part.end, ())) for part in parts]
    return segments
