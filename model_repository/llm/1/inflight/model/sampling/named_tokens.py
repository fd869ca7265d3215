"""Log-probabilities of the tokens that `logprob_token_ids` names."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from inflight.model.sampling.piecewise import piecewise_logprobs
from inflight.scheduler.plan import ScheduledRequest
from inflight.step_result import StepResult


def with_named_tokens(
    results: list[StepResult], logits: torch.Tensor, sampling: Sequence[ScheduledRequest]
) -> list[StepResult]:
    """Return the results of S rows with the log-probabilities of named tokens. The logits are [S, vocabulary].

    `sampling` is `StepPlan.sampling`.
    """
    requests = [each.request for each in sampling for _ in range(each.num_rows)]
    asked = [
        (row, token)
        for row, (request, result) in enumerate(zip(requests, results, strict=True))
        if result.logprobs
        for token in request.params.logprob_token_ids
    ]
    if not asked:
        return results
    rows, tokens = zip(*asked, strict=True)
    found = piecewise_logprobs(lambda piece: logits[list(rows[piece])], tokens, [0] * len(tokens))
    named: dict[int, dict[int, tuple[float, int]]] = {row: {} for row in rows}
    for row, token, entry in zip(rows, tokens, found, strict=True):
        named[row][token] = entry.chosen, entry.rank
    return [_with(result, named[row]) if row in named else result for row, result in enumerate(results)]


def _with(result: StepResult, named: dict[int, tuple[float, int]]) -> StepResult:
    first, *others = result.logprobs
    return replace(result, logprobs=(replace(first, others=named), *others))
