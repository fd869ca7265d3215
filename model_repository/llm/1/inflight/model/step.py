"""Computes a step plan: batch, forward pass, sampling, and what is read of prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import torch

from inflight.guided_decoding.token_masks import TokenMasks
from inflight.kv_cache.recurrent_states import StatePlan
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.embeds.batch_embeds import BatchEmbeds
from inflight.model.forward import Outputs
from inflight.model.images.batch_images import BatchImages
from inflight.model.loading.loader import LoadedModel
from inflight.model.prompt_reader import PromptReader
from inflight.model.prompt_states import with_prompt_states
from inflight.model.ragged_batch import RaggedBatch
from inflight.model.sampling.named_tokens import with_named_tokens
from inflight.model.sampling.sampler import sample
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.model.sampling.verification import verified
from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.step_result import StepResult


@torch.inference_mode()
def compute(
    model: LoadedModel,
    plan: StepPlan,
    caches: Sequence[LayerCache],
    block_size: int,
    masks: "Future[TokenMasks] | None" = None,
) -> list[StepResult]:
    """Compute the scheduled tokens, and return the answer to each request in `plan.answered`, in that order.

    `masks` are those of guided requests, which are made meanwhile.
    """
    sampling = SamplingBatch.of(plan.sampling)
    arrays = BatchArrays.of(plan, block_size)
    images = BatchImages.of(plan.scheduled, arrays)
    embeds = BatchEmbeds.of(plan.scheduled, arrays, model.device)
    outputs = run_forward(model, arrays, caches, plan.states, images, embeds)
    return answers(plan, arrays, outputs, model.forward.head, sampling, masks)


def run_forward(
    model: LoadedModel,
    arrays: BatchArrays,
    caches: Sequence[LayerCache],
    states: StatePlan | None = None,
    images: BatchImages | None = None,
    embeds: BatchEmbeds | None = None,
) -> Outputs:
    """Run the model over a batch. The logits are those of the tokens to be sampled."""
    batch = RaggedBatch.on(model.device, arrays, states, images, embeds)
    return model.forward(batch, caches, batch.logit_rows)


def answers(
    plan: StepPlan,
    arrays: BatchArrays,
    outputs: Outputs,
    head: Callable[[torch.Tensor], torch.Tensor],
    sampling: SamplingBatch,
    masks: "Future[TokenMasks] | None",
) -> list[StepResult]:
    """Sample, and read what is to be read of prompts. See `compute`; `head` is that of `ForwardPass`."""
    logits, hidden = outputs
    rows = with_named_tokens(sample(logits, sampling, masks.result() if masks else None), logits, plan.sampling)
    results = verified(rows, plan.sampling)
    if plan.shows_states:
        results = with_prompt_states(results, plan, arrays, hidden)
    if len(results) == len(plan.answered) and not plan.reading:
        return results
    return list(_joined(plan, results, PromptReader(plan, arrays, hidden, head).results()))


def _joined(plan: StepPlan, sampled: Sequence[StepResult], read: Mapping[Request, StepResult]) -> Iterator[StepResult]:
    """Yield a new token, what was read of the prompt, or both, for each request in `plan.answered`."""
    tokens = iter(sampled)
    for each in plan.answered:
        result = read.get(each.request, StepResult(()))
        new = next(tokens) if each.samples else None
        if new is not None and not result.is_faulty:
            result = replace(new, prompt_logprobs=result.prompt_logprobs, states=result.states)
        yield result
