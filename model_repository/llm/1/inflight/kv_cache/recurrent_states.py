"""Where the recurrent states of sequences are, in models with layers that keep one: state-space and linear attention.

Such a layer keeps a state of constant size for each sequence instead of keys and values for each token. It has one at
the end of the computed tokens only. To reuse a prefix, a sequence needs a copy of the state at the end of a block, a
snapshot. A state takes as much memory as many blocks, so there are few snapshots. They are made where reuse is likely:

- at the last full block of a prompt, and of the output so far, from where a chat goes on;
- where a prompt leaves what it has in common with an earlier one.

The second rule is that of Marconi (MLSys'25): the first prompt with a common beginning leaves its blocks, the second
one makes the snapshot, and the third one reuses it.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from inflight.request import Request


class Snapshot(NamedTuple):
    """A copy of a sequence's state that a step is to make."""

    row: int
    """Index of the request in `StepPlan.scheduled`."""
    end: int
    """The state after this many tokens of the sequence. It is a multiple of the block size."""
    slot: int
    """The slot to copy to."""
    name: bytes
    """Hash of the block that ends there."""


class StatePlan(NamedTuple):
    """What a step does with the states of its R requests."""

    slots: Sequence[int]
    """[R], the slot of each request's state."""
    prompt_lens: Sequence[int]
    """[R], the number of tokens of each request's prompt."""
    copies: Sequence[tuple[int, int]] = ()
    """Pairs of a slot and the slot to copy it to, before the step computes. All are read before any is written."""
    snapshots: Sequence[Snapshot] = ()
    """Copies to make while the step computes."""
    freed: Sequence[int] = ()
    """Slots whose states nobody needs any more, unless the step writes there."""


class RecurrentStates:
    """Plans where states go. The slots below `num_sequences` are those of requests, see `Request.slot`."""

    def __init__(
        self,
        num_sequences: int,
        num_snapshots: int,
        block_size: int,
        *,
        reuses_output: bool = True,
    ) -> None:
        """
        Args:
            num_sequences: maximum number of requests with blocks.
            num_snapshots: 0: none are made.
            reuses_output: whether a prompt has the same states as output of the same tokens, so that it may begin with
                those of output.
        """
        self.reuses_output = reuses_output
        self._block_size = block_size
        self._free = list(range(num_sequences + num_snapshots - 1, num_sequences - 1, -1))
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        """Slots by name, the least recently used one first."""
        self._of_output: dict[Request, bytes] = {}
        """The snapshot of each request's output. A later one takes its place."""
        self._copies: list[tuple[int, int]] = []
        self._freed: set[int] = set()

    # -- reuse -------------------------------------------------------------------------------------------------------

    def num_reusable(self, names: Sequence[bytes]) -> int:
        """Return how many of the blocks with these names, a prefix, end with a snapshot or before one."""
        return next((count for count in range(len(names), 0, -1) if names[count - 1] in self._kept), 0)

    def admitted(self, request: Request, name: bytes | None) -> None:
        """Plan to begin with the snapshot `name`, if any, instead of an empty state."""
        if name is not None:
            self._kept.move_to_end(name)
            self._copies.append((self._kept[name], request.slot))

    def forked(self, source: Request, target: Request) -> None:
        """Plan to begin with the state of another request."""
        self._copies.append((source.slot, target.slot))

    def released(self, request: Request) -> None:
        """Forget a request that gives back its blocks."""
        self._of_output.pop(request, None)
        self._copies = [copy for copy in self._copies if copy[1] != request.slot]
        self._freed.add(request.slot)

    # -- steps -------------------------------------------------------------------------------------------------------

    def to_come(self, request: Request) -> list[int]:
        """Return at which positions of a prompt there will be snapshots."""
        return self._ends(request, request.num_computed, len(request.prompt_ids))

    def plan(
        self, requests: Sequence[Request], ends: Sequence[int], name_of: Callable[[Request, int], bytes]
    ) -> StatePlan:
        """Return what the next step does, which computes each request up to `ends`.

        `name_of` returns the hash of the block of a request that ends at a position.
        """
        if not requests:
            return StatePlan((), ())
        copies, self._copies = tuple(self._copies), []
        freed, self._freed = self._freed, set()
        snapshots = []
        for row, (request, end) in enumerate(zip(requests, ends, strict=True)):
            for at in self._ends(request, request.num_computed, end):
                name = name_of(request, at)
                if name in self._kept:
                    self._kept.move_to_end(name)
                elif (slot := self._take()) is not None:
                    snapshots.append(Snapshot(row, at, slot, name))
        lens = [len(request.prompt_ids) for request in requests]
        return StatePlan([request.slot for request in requests], lens, copies, snapshots, sorted(freed))

    def _ends(self, request: Request, first: int, end: int) -> list[int]:
        """Return where to make snapshots of a request while its tokens from `first` up to `end` are computed."""
        if not (self._free or self._kept):
            return []
        size, prompt = self._block_size, len(request.prompt_ids)
        # The same prompt again has to compute its last token.
        wanted = {(prompt - 1) // size * size, request.num_matched * size}
        if self.reuses_output and end > prompt and end % size == 0 and request.beams is None:
            wanted.add(end)
        return sorted(at for at in wanted if first < at <= end)

    def _take(self) -> int | None:
        if not self._free and self._kept:
            self._free.append(self._kept.popitem(last=False)[1])
        return self._free.pop() if self._free else None

    def commit(self, plan: StatePlan, requests: Sequence[Request], failed: Collection[Request]) -> None:
        """Let others use the snapshots of a step that ran, but not those of requests that failed."""
        for snapshot in plan.snapshots:
            request = requests[snapshot.row]
            if request in failed or snapshot.name in self._kept:
                self._free.append(snapshot.slot)
                continue
            self._kept[snapshot.name] = snapshot.slot
            if snapshot.end > len(request.prompt_ids):
                self._drop(self._of_output.get(request))
                self._of_output[request] = snapshot.name

    def _drop(self, name: bytes | None) -> None:
        if name is not None and (slot := self._kept.pop(name, None)) is not None:
            self._free.append(slot)

    def abandon(self, plan: StatePlan) -> set[int]:
        """Take back the slots of snapshots after a step that failed. Return the slots whose states are lost.

        These are also those of requests that were not computed, if the step was to copy a state there.
        """
        self._free += [snapshot.slot for snapshot in plan.snapshots]
        return {*plan.slots, *(target for _, target in plan.copies)}
