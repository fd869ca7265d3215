"""The logits of trial prompts: by the model's own eager forward pass, and through a paged cache in ragged batches."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

import torch

from inflight.errors import UnsupportedModel
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.recurrent_states import StatePlan
from inflight.model.attention.backend import AttentionBackend
from inflight.model.attention.interface import attending_by
from inflight.model.batch_arrays import BatchArrays
from inflight.model.embeds.batch_embeds import BatchEmbeds
from inflight.model.forward import ForwardPass, Outputs, cache_argument, new_cache, takes
from inflight.model.images.batch_images import BatchImages
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.ragged_batch import RaggedBatch
from inflight.prompt_content import PromptContent
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan

DECODED = 2
"""So many of a prompt's last tokens are computed one by one, as if they were output."""


def _split(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Split tokens into those that are computed as a prompt and those that are computed as output."""
    end = max(1, len(tokens) - DECODED)
    return tokens[:end], tokens[end:]


def requests_of(prompts: Sequence[list[int]]) -> list[Request]:
    """Return a request for each prompt. The last tokens are output, as in `eager_logits`."""
    requests = []
    for number, tokens in enumerate(prompts):
        prompt, output = _split(tokens)
        requests.append(Request(str(number), prompt, SamplingParams(), max_tokens=len(output) + 1, seed=0))
        requests[-1].token_ids += output
    return requests


def request_of(prompt: PromptContent) -> Request:
    """Return a request for a prompt with images or embeddings."""
    return Request(
        "0", prompt.token_ids, SamplingParams(), max_tokens=1, seed=0, images=prompt.images, embeds=prompt.embeds
    )


@torch.inference_mode()
def paged_logits(
    module: Any,
    forward: ForwardPass,
    layers: Sequence[AttentionLayer],
    requests: Sequence[Request],
    backend: AttentionBackend,
    see: Callable[[Outputs], object] = lambda outputs: None,
    computing: Callable[[list[int]], AbstractContextManager[None]] = lambda tokens: nullcontext(),
) -> list[torch.Tensor]:
    """Logits [tokens, vocabulary] of each prompt, computed in chunks of unequal length, some of a single token.

    `see` is called with the outputs of each step. Its forward pass runs in the context that `computing` returns for the
    numbers of its tokens; all tokens of all prompts are numbered in order.
    """
    device, block_size = next(module.parameters()).device, backend.checked_block_size
    lengths = [len(request.token_ids) for request in requests]
    tables = BlockTables(BlockPool(sum(lengths)), block_size, prefix_caching=False)
    shapes = [layer.shape for layer in layers]
    caches = backend.allocate(shapes, tables.pool.num_blocks, block_size, module.dtype, device)
    for request in requests:
        tables.admit(request, tables.prefixes.lookup(request))
    logits: dict[str, list[torch.Tensor]] = {request.request_id: [] for request in requests}
    starts = {r.request_id: start for r, start in zip(requests, accumulate(lengths, initial=0), strict=False)}
    while plan := _next_chunks(requests, tables):
        arrays = BatchArrays.of(plan, block_size)
        images, embeds = BatchImages.of(plan.scheduled, arrays), BatchEmbeds.of(plan.scheduled, arrays, device)
        batch = RaggedBatch.on(device, arrays, plan.states, images, embeds)
        parts = [plan.scheduled[index] for index in arrays.order]
        numbers = [starts[s.request.request_id] + place for s in parts for place in range(s.first, s.end)]
        with computing(numbers):
            outputs = forward(batch, caches, torch.arange(len(batch.token_ids), device=device))
        see(outputs)
        for part, first, last in zip(parts, batch.query_starts, batch.query_starts[1:], strict=False):
            logits[part.request.request_id].append(outputs.logits[first:last])
        for scheduled in plan.scheduled:
            tables.commit(scheduled.request, scheduled.num_tokens)
    return [torch.cat(logits[request.request_id]) for request in requests]


def _next_chunks(requests: Sequence[Request], tables: BlockTables) -> StepPlan | None:
    """Schedule half of the first request's remaining tokens and a third of the second's; the last ones one by one.

    Returns None when nothing is left to compute.
    """
    scheduled = []
    for parts, request in enumerate(requests, start=2):
        left, first = request.num_uncomputed, request.num_computed
        if left:
            end = first + (1 if left <= DECODED else -(-left // parts))
            if first < len(request.prompt_ids):
                end = min(end, len(request.prompt_ids))
            if request.images is not None:
                end = max(request.images.last_end(first, end), request.images.next_end(first))
            scheduled.append(ScheduledRequest.next_of(request, end - first))
    if not scheduled:
        return None
    gathered = tables.gather([s.request for s in scheduled], [s.end for s in scheduled])
    states = StatePlan([s.request.slot for s in scheduled], [len(s.request.prompt_ids) for s in scheduled])
    return StepPlan(tuple(scheduled), gathered, states=states)


def _generate_gives_positions(module: Any) -> bool:
    """Whether `generate` gives a model the positions of its tokens. Kosmos-2.5 lets the model count them instead."""
    if not takes(module, "position_ids"):
        return False
    tokens = torch.zeros((1, 1), dtype=torch.int64, device=next(module.parameters()).device)
    prepared = module.prepare_inputs_for_generation(
        tokens, position_ids=tokens, attention_mask=torch.ones_like(tokens), is_first_iteration=True
    )
    return "position_ids" in prepared


@torch.inference_mode()
def eager_logits(module: Any, prompts: Sequence[list[int]]) -> list[torch.Tensor]:
    """Logits [tokens, vocabulary] of each prompt as transformers' `generate` computes them.

    The last tokens use the model's own cache, because its window is not always that of the model's masks.

    Raises:
        UnsupportedModel: the model returns no cache. Its code may raise any other exception.
    """
    keep = {"logits_to_keep": 0} if takes(module, "logits_to_keep") else {}
    with_positions = _generate_gives_positions(module)
    with attending_by(module, "eager"):
        return [_eager_logits(module, prompt, keep, with_positions=with_positions) for prompt in prompts]


def _eager_logits(
    module: Any, prompt: list[int], arguments: Mapping[str, Any], *, with_positions: bool
) -> torch.Tensor:
    device, cache_name = next(module.parameters()).device, cache_argument(module)
    begin, decoded = _split(prompt)
    cache, rows, first = new_cache(module), [], 0
    for piece in [begin, *([token] for token in decoded)]:
        given: dict[str, Any] = {cache_name: cache, "use_cache": True, **arguments}
        if with_positions:
            # Not every model computes the right ones.
            given["position_ids"] = torch.arange(first, first + len(piece), device=device)[None]
        output = module(torch.tensor([piece], device=device), **given)
        first += len(piece)
        cache = output.get(cache_name)
        if cache is None:
            raise UnsupportedModel(f"{module.config.model_type} returns no cache, as encoders do")
        rows.append(output.logits[0])
    return torch.cat(rows)
