"""A model without weights whose KV cache tells every mix-up of blocks.

The next token is a function of all tokens before it. A slot of the cache holds the name of the tokens up to
its position, and every token that is computed first looks up the names at all positions before its own.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.step_result import StepResult, TokenLogprobs

VOCABULARY = 7


def prefix_names(token_ids: Sequence[int], *, is_long: bool = False) -> list[int]:
    """For each token, a name of it and all before it. Those in a long sequence are others, see `Request.is_long`."""
    names, name = [], int(is_long)
    for token in token_ids:
        name = hash((name, token))
        names.append(name)
    return names


def next_token(token_ids: Sequence[int], *, is_long: bool = False) -> int:
    return prefix_names(token_ids, is_long=is_long)[-1] % VOCABULARY


def likeliest(token_ids: Sequence[int], count: int) -> dict[int, float]:
    """The likeliest next tokens with numbers in place of log-probabilities."""
    name = prefix_names(token_ids)[-1]
    numbers = {token: -(hash((name, token)) % 10_007) / 1000 for token in range(VOCABULARY)}
    return dict(sorted(numbers.items(), key=lambda each: -each[1])[:count])


def expected_output(request: Request) -> tuple[list[int], str]:
    """What a request generates, and why it ends, as if it were alone."""
    tokens, output = list(request.prompt_ids), []
    if not request.max_tokens:
        return [], "length" if request.pooling is None else "stop"
    while True:
        is_long = request.rope_switch is not None and len(tokens) > request.rope_switch
        output.append(next_token(tokens, is_long=is_long))
        tokens.append(output[-1])
        if len(output) >= request.params.min_tokens and output[-1] in request.stop_token_ids:
            return output, "stop"
        if len(output) >= request.max_tokens:
            return output, "length"


def expected_readings(request: Request) -> list[int]:
    """What a request reads of its prompt: a number for each position that it wants to know of."""
    names = [name % 1000 for name in prefix_names(request.prompt_ids)]
    if request.pooling is None:
        return names[:-1] if request.params.prompt_logprobs is not None else []
    return names[-1:] if request.pooling.pooling == "last" else names


class ForcingGrammar:
    """Forces some of the tokens that the model would choose anyway, in runs of up to six."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._token_ids = list(prompt_ids)
        self.forced: deque[int] = deque()
        self.ended, self.error = False, None

    def num_legal(self, draft: Sequence[int]) -> int:
        return len(draft)

    def accept(self, token_id: int) -> None:
        if self.forced:
            assert self.forced.popleft() == token_id
            return
        self._token_ids.append(token_id)
        for _ in range(max(0, prefix_names(self._token_ids)[-1] % 10 - 3)):
            self._token_ids.append(next_token(self._token_ids))
            self.forced.append(self._token_ids[-1])


class FakeModel:
    """Runs plans as `ModelRunner` does."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[int, int] = {}
        self._host_slots: dict[int, int] = {}

    def export(self, token_ids: Sequence[int]) -> NDArray[np.uint8]:
        """The bytes of blocks that hold the keys and values of tokens."""
        names = np.full(-(-len(token_ids) // self._block_size) * self._block_size, -1, dtype=np.int64)
        names[: len(token_ids)] = prefix_names(token_ids)
        return names.reshape(-1, self._block_size).view(np.uint8)

    def run(self, plan: StepPlan) -> list[StepResult]:
        self._swap(plan)
        self._look_up(plan, lambda share: share.first)
        self._write(plan, spoil=False)
        self._look_up(plan, lambda share: share.end)
        return [self._answer(share) for share in plan.answered]

    def _answer(self, share: ScheduledRequest) -> StepResult:
        request = share.request
        tokens = self._next_tokens(share) if share.samples else ()
        names = prefix_names(request.prompt_ids)
        if request.beams is not None:
            found = likeliest(request.token_ids, request.num_logprobs or 0)
            return StepResult(tokens, [TokenLogprobs(max(found.values()), 1, found)])
        said = [names[position] % 1000 for position in share.read]
        if request.pooling is not None:
            return StepResult(tokens, states=np.array([sum(said), len(said)], dtype=np.float64))
        return StepResult(tokens, prompt_logprobs=[TokenLogprobs(-float(number), number, {}) for number in said])

    def _next_tokens(self, share: ScheduledRequest) -> list[int]:
        """The drafted tokens that are right, and the one after them."""
        tokens = list(share.request.token_ids)
        for draft in (*share.draft, None):
            tokens.append(next_token(tokens, is_long=share.request.is_long))
            if tokens[-1] != draft:
                break
        return tokens[len(share.request.token_ids) :]

    def break_down(self, plan: StepPlan) -> None:
        """Leave garbage wherever the plan would have written or copied to."""
        for pairs, slots in (
            (plan.swapped_out, self._host_slots),
            (plan.forked, self._slots),
            (plan.swapped_in, self._slots),
        ):
            for _, block in pairs:
                slots.update(dict.fromkeys(self._slots_of(block), -1))
        for _, blocks in plan.imported:
            for block in blocks:
                self._slots.update(dict.fromkeys(self._slots_of(block), -1))
        self._write(plan, spoil=True)

    def run_out_of_memory(self, plan: StepPlan) -> None:
        """Make the plan's copies, and leave garbage wherever it would have written."""
        self._swap(plan)
        self._write(plan, spoil=True)

    def _swap(self, plan: StepPlan) -> None:
        self._copy(plan.swapped_out, self._slots, self._host_slots)
        self._copy(plan.forked, dict(self._slots), self._slots)
        self._copy(plan.swapped_in, self._host_slots, self._slots)
        for data, blocks in plan.imported:
            for names, block in zip(np.ascontiguousarray(data).view(np.int64).tolist(), blocks, strict=True):
                self._slots.update(zip(self._slots_of(block), names, strict=True))

    def _copy(self, pairs: Sequence[tuple[int, int]], source: dict[int, int], target: dict[int, int]) -> None:
        assert len({block for _, block in pairs}) == len(pairs), "two copies go to the same block"
        for old, new in pairs:
            for come_from, go_to in zip(self._slots_of(old), self._slots_of(new), strict=True):
                target[go_to] = source.get(come_from, -1)

    def _slots_of(self, block: int) -> range:
        return range(block * self._block_size, (block + 1) * self._block_size)

    def _look_up(self, plan: StepPlan, length_of: Callable[[ScheduledRequest], int]) -> None:
        """Every position of a request before a length holds what its own tokens put there."""
        for table, share in zip(plan.block_tables.tolist(), plan.scheduled, strict=True):
            known = [*share.request.token_ids[: share.first], *share.token_ids][: length_of(share)]
            wanted = prefix_names(known, is_long=share.request.is_long)
            found = [self._slots.get(self._slot(table, position)) for position in range(len(wanted))]
            assert found == wanted, f"{share.request.request_id} reads the keys and values of other tokens"

    def _write(self, plan: StepPlan, *, spoil: bool) -> None:
        written: set[int] = set()
        for table, share in zip(plan.block_tables.tolist(), plan.scheduled, strict=True):
            known = [*share.request.token_ids[: share.first], *share.token_ids]
            names = prefix_names(known, is_long=share.request.is_long)
            for position in range(share.first, share.end):
                slot = self._slot(table, position)
                assert slot not in written, f"slot {slot} is written twice in a step"
                written.add(slot)
                self._slots[slot] = -1 if spoil else names[position]

    def _slot(self, table: Sequence[int], position: int) -> int:
        return table[position // self._block_size] * self._block_size + position % self._block_size
