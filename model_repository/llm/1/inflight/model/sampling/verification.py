"""Turns the tokens of sampled rows into the new tokens of requests: drafts are kept as far as they are right.

The sampler draws the model's own token at each position, with the random number of this position. So a drafted token is
right if it equals the token that is drawn at its place, and then the next row saw the same tokens as without a draft.
The output is the same, token by token, with or without drafts, at any temperature. Speculative sampling (Leviathan et
al., ICML'23) accepts as often for drafts that are not drawn at random, but its tokens depend on the drafts.
"""

from collections.abc import Iterator, Sequence

from inflight.scheduler.plan import ScheduledRequest
from inflight.step_result import StepResult


def verified(rows: list[StepResult], sampling: Sequence[ScheduledRequest]) -> list[StepResult]:
    """Return the new tokens of each request of `StepPlan.sampling`, given those of the S rows.

    They are the drafted tokens that are right, and the one after them.
    """
    if len(rows) == len(sampling):
        return rows
    remaining = iter(rows)
    return [_verified(each, [next(remaining) for _ in range(each.num_rows)]) for each in sampling]


def _verified(each: ScheduledRequest, rows: Sequence[StepResult]) -> StepResult:
    """Join the tokens of the rows that count. One without a token ends them: the next step computes it again."""
    right = list(_right(each, rows))
    return StepResult(
        [token for row in right for token in row.token_ids],
        [entry for row in right for entry in row.logprobs],
        is_tainted=any(row.is_tainted for row in rows),
    )


def _right(each: ScheduledRequest, rows: Sequence[StepResult]) -> Iterator[StepResult]:
    """Yield the rows whose tokens before them are right."""
    for row, draft in zip(rows, (*each.draft, None), strict=True):
        yield row
        if draft is None or tuple(row.token_ids) != (draft,):
            return
