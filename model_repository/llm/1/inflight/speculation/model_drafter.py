"""Drafts of a smaller model with the same tokens: the method `draft_model`.

Speculative decoding as in Leviathan et al., ICML'23. Drafts are verified as all others are, see `verification`.
"""

import logging
from collections.abc import Callable, Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.row_times import RowTimes
from inflight.speculation.acceptance import Share
from inflight.speculation.draft_sequence import DraftSequence
from inflight.step_result import StepResult

logger = logging.getLogger(__name__)

# Maximum number of tokens that the draft model reads in a step in addition to one for each request. The step waits.
_READ_TOKENS = 256
# What is assumed of the first drafts, and how many tokens the assumption counts as.
_ASSUMED, _WEIGHT_OF_ASSUMED = 0.7, 10.0
_WEIGHT_OF_SHARED = 4.0
_MEMORY = 500.0


class ModelDrafter:
    """Runs the draft model for all requests together: a step for each drafted token."""

    def __init__(
        self,
        run: Callable[[StepPlan], Sequence[StepResult]],
        tables: BlockTables,
        times: RowTimes,
        *,
        max_model_len: int,
        vocab_size: int,
        draft_vocab_size: int,
    ) -> None:
        """
        Args:
            run: computes a plan with the draft model, like `Runner.run`.
            tables: those of the draft model's cache.
            times: measured times of the draft model's steps.
            max_model_len: longest sequence that the draft model computes.
            vocab_size: number of tokens of the model that verifies.
            draft_vocab_size: number of tokens of the draft model.
        """
        self._run, self._tables, self._times = run, tables, times
        self._max_model_len = max_model_len
        self._vocab_size, self._draft_vocab_size = vocab_size, draft_vocab_size
        self._sequences: dict[Request, DraftSequence] = {}
        self._shared = Share(_MEMORY)
        self._failed = False

    def outlook(self, request: Request) -> float:
        """See `Drafter`."""
        if self._failed or len(request.token_ids) > self._max_model_len:
            return 0.0
        shared = (_WEIGHT_OF_ASSUMED * _ASSUMED + self._shared.right) / (_WEIGHT_OF_ASSUMED + self._shared.tried)
        sequence = self._sequences.get(request)
        if sequence is None:
            return shared
        if not sequence.is_readable:
            return 0.0
        own = sequence.share
        return (_WEIGHT_OF_SHARED * shared + own.right) / (_WEIGHT_OF_SHARED + own.tried)

    def seconds_per_token(self, num_requests: int) -> float:
        """See `Drafter`."""
        return self._times.seconds_of(num_requests) / num_requests

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """See `Drafter`. A request has no draft while the draft model reads its prompt, or has no room for it, or once
        it has a token that the draft model lacks."""
        sequences = [self._following(request) for request, _ in wanted]
        counts = [min(count, self._max_model_len - len(request.token_ids) + 1) for request, count in wanted]
        try:
            self._draft({s: count for s, count in zip(sequences, counts, strict=True) if s.is_readable})
        except Exception:
            # What the draft model lacks must not cost anybody an answer.
            logger.exception("the draft model has failed; there are no more drafts")
            self._fail()
            return [[] for _ in wanted]
        return [list(sequence.draft) for sequence in sequences]

    def observe(self, request: Request) -> None:
        """See `Drafter`."""
        sequence = self._sequences.get(request)
        if sequence is None or not sequence.is_readable:
            return
        outcomes = sequence.outcomes(request.token_ids)
        for right in outcomes:
            sequence.share.observe(right=right)
            self._shared.observe(right=right)
        if not outcomes:
            # Without drafts nothing is seen, so what was seen counts less and less until they are tried again.
            sequence.share.fade()
            self._shared.fade()

    def completed(self, request: Request) -> None:
        """See `Drafter`."""

    def forget(self, request: Request) -> None:
        """See `Drafter`."""
        sequence = self._sequences.pop(request, None)
        if sequence is not None:
            sequence.release(self._tables)

    def _following(self, request: Request) -> DraftSequence:
        sequence = self._sequences.get(request)
        if sequence is None:
            sequence = self._sequences[request] = DraftSequence(request, self._draft_vocab_size)
        sequence.follow(request.token_ids, self._tables)
        if not sequence.is_readable:
            sequence.release(self._tables)
        return sequence

    def _draft(self, counts: dict[DraftSequence, int]) -> None:
        """Add drafts of so many tokens."""
        spare = _READ_TOKENS
        steps = []
        for sequence in counts:
            if sequence.take_room(self._tables):
                steps.append((sequence, sequence.next(1 + spare)))
                spare -= steps[-1][1].num_tokens - 1
        while steps:
            # As in any plan, single tokens come before longer parts.
            steps.sort(key=lambda step: step[1].num_tokens > 1)
            scheduled = tuple(each for _, each in steps)
            ends = [each.end for each in scheduled]
            plan = StepPlan(scheduled, self._tables.gather([each.request for each in scheduled], ends))
            results = iter(self._run(plan))
            for sequence, each in steps:
                new = next(results).token_ids if each.samples else ()
                sequence.computed(each, [token for token in new if token < self._vocab_size])
            steps = [
                (sequence, sequence.next(1))
                for sequence, each in steps
                if sequence.goes_on(counts[sequence]) and sequence.take_room(self._tables)
            ]

    def _fail(self) -> None:
        self._failed = True
        for request in list(self._sequences):
            self.forget(request)
