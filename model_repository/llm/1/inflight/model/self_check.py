"""Serves two made-up requests through pages, ragged and in chunks, and compares with the model's own eager attention.

Catches at load what no config tells: positions that a model makes up itself, state kept between tokens, masks that it
applies behind the attention interface.
"""

from collections.abc import Sequence
from typing import Any

import torch

from inflight.errors import UnsupportedModel
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.model import attention_interface, kv_tensors
from inflight.model.attention_interface import attending
from inflight.model.attention_probe import AttentionLayer
from inflight.model.forward import forward, takes
from inflight.model.paged_attention import PagedAttention
from inflight.model.ragged_batch import RaggedBatch
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import Scheduled, StepPlan

_SHORT, _LONG, _LONGEST = 13, 40, 640
_BLOCK_SIZE = 4
# Relative error of logits. Rounding gives about 1e-6, 2e-3 and 2e-2; a wrong mask or position 1e-1 and more.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def check_against_eager(module: Any, layers: Sequence[AttentionLayer], max_model_len: int) -> None:
    """Compare logits of all positions of two requests.

    Raises:
        UnsupportedModel: they differ by more than rounding explains.
    """
    longest_window = max((layer.window or 0 for layer in layers), default=0)
    long = min(max(_LONG, longest_window + 9), _LONGEST, max_model_len)
    short = min(max(_SHORT, long // 2), max_model_len)
    vocabulary = module.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (long, short)]
    ours = _paged_logits(module, layers, prompts)
    theirs = _eager_logits(module, prompts)
    for mine, other in zip(ours, theirs, strict=True):
        error = _error(mine, other)
        if not error < _TOLERANCE.get(module.dtype, 1e-3):
            raise UnsupportedModel(
                f"{module.config.model_type} does not come out right when served ragged: its logits are off by "
                f"{error:.1%} from those with its own attention"
            )


def _error(mine: torch.Tensor, other: torch.Tensor) -> float:
    """Relative error of logits [tokens, vocabulary]: of the worst token, or in half precision, where a mixture of
    experts may route a token elsewhere by rounding alone, of the median one."""
    errors = (mine - other).norm(dim=-1) / other.norm(dim=-1)
    return float(errors.max() if mine.dtype == torch.float32 else errors.float().median())


@torch.inference_mode()
def _paged_logits(
    module: Any, layers: Sequence[AttentionLayer], prompts: Sequence[list[int]]
) -> list[torch.Tensor]:
    """Logits [tokens, vocabulary] of each prompt, computed in unequal chunks, single tokens among them."""
    device = next(module.parameters()).device
    tables = BlockTables(BlockPool(sum(len(p) for p in prompts)), _BLOCK_SIZE, prefix_caching=False)
    caches = kv_tensors.allocate(
        [layer.shape for layer in layers], tables.pool.num_blocks, _BLOCK_SIZE, module.dtype, device
    )
    requests = [
        Request(str(i), prompt, SamplingParams(), max_tokens=1, seed=0) for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        tables.admit(request)
    logits: dict[str, list[torch.Tensor]] = {request.request_id: [] for request in requests}
    while plan := _next_chunks(requests):
        batch = RaggedBatch.build(plan, _BLOCK_SIZE, device)
        with attending(PagedAttention(batch, caches, [layer.window for layer in layers])):
            flat = forward(module, batch.token_ids, batch.positions, None)
        for request, first, last in zip(batch.rows, batch.query_starts, batch.query_starts[1:], strict=False):
            logits[request.request_id].append(flat[first:last])
        for share in plan.scheduled:
            tables.commit(share.request, share.num_tokens)
    return [torch.cat(logits[request.request_id]) for request in requests]


def _next_chunks(requests: Sequence[Request]) -> StepPlan | None:
    """The first request gets on by half of what is left, the second by a third, the last four tokens one by one."""
    shares = []
    for parts, request in enumerate(requests, start=2):
        left = request.num_uncomputed
        if left:
            shares.append(Scheduled(request, 1 if left <= 4 else -(-left // parts)))
    return StepPlan(tuple(shares)) if shares else None


@torch.inference_mode()
def _eager_logits(module: Any, prompts: Sequence[list[int]]) -> list[torch.Tensor]:
    device = next(module.parameters()).device
    module.set_attn_implementation("eager")
    try:
        keep = {"logits_to_keep": 0} if takes(module, "logits_to_keep") else {}
        return [module(torch.tensor([prompt], device=device), **keep).logits[0] for prompt in prompts]
    finally:
        module.set_attn_implementation(attention_interface.NAME)
