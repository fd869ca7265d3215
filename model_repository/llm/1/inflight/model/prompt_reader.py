"""Reads prompt tokens in a step: their log-probabilities, or the hidden states for an embedding."""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch

from inflight.model.batch_arrays import BatchArrays
from inflight.model.sampling.piecewise import piecewise_logprobs
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.step_result import StepResult, TokenLogprobs


class PromptReader:
    """Reads the prompt tokens of one step.

    The whole step has hidden states, but only some rows have logits. The head computes those of the tokens to be scored
    in pieces, so that memory does not depend on the length of prompts.
    """

    def __init__(
        self, plan: StepPlan, arrays: BatchArrays, hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """`hidden` [T, width] belongs to the batch `arrays` of the plan, and `head` is that of `ForwardPass`."""
        self._hidden, self._head = hidden, head
        starts = np.empty_like(arrays.order)
        starts[arrays.order] = arrays.query_starts[:-1]
        self._rows = {
            each.request: slice(start + each.read.start - each.first, start + each.read.stop - each.first)
            for each, start in zip(plan.scheduled, starts.tolist(), strict=True)
            if each.read
        }
        """The rows of `hidden` that are read, for each request that reads any."""
        self._reading = plan.reading

    def results(self) -> dict[Request, StepResult]:
        """Return what the step says of each request that reads prompt tokens, without a new token."""
        scored = [each for each in self._reading if each.request.pooling is None]
        pooled = [each for each in self._reading if each.request.pooling is not None]
        return self._scores(scored) | self._states(pooled)

    def _scores(self, scored: Sequence[ScheduledRequest]) -> dict[Request, StepResult]:
        if not scored:
            return {}
        hidden = torch.cat([self._hidden[self._rows[each.request]] for each in scored])
        # The logits at a position are those of the token after it.
        tokens = list(chain.from_iterable(_after(each.request.prompt_ids, each.read) for each in scored))
        counts = [each.request.params.prompt_logprobs or 0 for each in scored for _ in each.read]
        found = iter(piecewise_logprobs(lambda piece: self._head(hidden[piece]), tokens, counts))
        return {each.request: _scores([next(found) for _ in each.read]) for each in scored}

    def _states(self, pooled: Sequence[ScheduledRequest]) -> dict[Request, StepResult]:
        if not pooled:
            return {}
        sums = [self._hidden[self._rows[each.request]].double().sum(dim=0) for each in pooled]
        return {
            each.request: StepResult((), states=states, is_faulty=not bool(np.isfinite(states).all()))
            for each, states in zip(pooled, torch.stack(sums).cpu().numpy(), strict=True)
        }


def _after(token_ids: Sequence[int], positions: range) -> Sequence[int]:
    return token_ids[positions.start + 1 : positions.stop + 1]


def _scores(entries: list[TokenLogprobs]) -> StepResult:
    return StepResult((), prompt_logprobs=entries, is_faulty=any(entry.chosen != entry.chosen for entry in entries))
