"""The hidden states of prompts' last tokens, from which output lengths are predicted."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from inflight.model.batch_arrays import BatchArrays
from inflight.scheduler.plan import StepPlan
from inflight.step_result import StepResult


def with_prompt_states(
    results: Sequence[StepResult], plan: StepPlan, arrays: BatchArrays, hidden: torch.Tensor
) -> list[StepResult]:
    """Return the results of `plan.sampling`, those of first tokens with the state of the token before.

    `hidden` [T, width] belongs to the batch `arrays` of the plan. If it is empty, the results stay as they are.
    """
    found = list(results)
    places, row = {}, 0
    for index, each in enumerate(plan.sampling):
        if each.last_token_at is None:
            places[index] = row
        row += each.num_rows
    if not places or not hidden.numel():
        return found
    rows = torch.from_numpy(arrays.logit_rows[list(places.values())]).to(hidden.device)
    for index, state in zip(places, hidden[rows].float().cpu().numpy(), strict=True):
        found[index] = replace(found[index], prompt_state=state)
    return found
