"""Serves two made-up requests through pages, ragged and in chunks, and compares with the model by itself.

Catches at load what no config tells: positions that a model makes up itself, state kept between tokens, masks that it
applies behind the attention interface.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from inflight.errors import UnsupportedModel
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.model.attention import interface
from inflight.model.attention.backend import TORCH, AttentionBackend
from inflight.model.batch_arrays import BatchArrays
from inflight.model.forward import EagerForward, ForwardPass, takes
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.ragged_batch import RaggedBatch
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan

logger = logging.getLogger(__name__)

_SHORT, _LONG, LONGEST = 13, 40, 640
_DECODED = 4
# Relative error of logits. Rounding gives about 1e-6, 2e-3 and 2e-2; a wrong mask or position 1e-1 and more.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_SAME = 1e-3


class SelfCheck:
    """A model's own logits for some prompts, to compare those with that it gives when it is served.

    Raises:
        UnsupportedModel: the model does not get through its own forward pass.
    """

    def __init__(self, module: Any, candidates: Sequence[tuple[AttentionLayer, ...]], max_model_len: int) -> None:
        """`candidates` are readings of the model's layers; the prompts are longer than their windows."""
        self._module = module
        self._prompts = _prompts(module, candidates, max_model_len)
        self._tolerance = _TOLERANCE.get(module.dtype, 1e-3)
        with _failing_as_unsupported(module):
            self._wanted = _eager_logits(module, self._prompts)

    def served_layers(self, candidates: Sequence[tuple[AttentionLayer, ...]]) -> tuple[AttentionLayer, ...]:
        """The first of some readings with which the model comes out right, compared at every position.

        Raises:
            UnsupportedModel: none does; by how much the first is off is said.
        """
        errors = []
        for layers in candidates:
            with _failing_as_unsupported(self._module):
                forward = EagerForward(self._module, TORCH, [layer.window for layer in layers])
                errors.append(self._error(forward, layers, TORCH))
            if errors[-1] < self._tolerance:
                return layers
        raise UnsupportedModel(
            f"{self._module.config.model_type} does not come out right when served ragged: its logits are off by "
            f"{errors[0]:.1%} from those that it gives by itself"
        )

    def passes(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> bool:
        """Whether the model comes out right with a way to compute it over a backend's caches."""
        try:
            return self._error(forward, layers, backend) < self._tolerance
        except RuntimeError as error:
            logger.info("%s: %s", backend.name, str(error).strip().splitlines()[-1])
            return False

    def same(
        self, forward: ForwardPass, other: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> bool:
        """Whether two ways to compute the model do the same to every token, but for rounding here and there.

        Stricter than `passes`, which in half precision lets single tokens differ.
        """
        logits = (_paged_logits(self._module, way, layers, self._prompts, backend) for way in (forward, other))
        mine, others = (torch.cat(rows) for rows in logits)
        return bool(((mine - others).norm(dim=-1) <= _SAME * others.norm(dim=-1)).all())

    def _error(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> float:
        found = _paged_logits(self._module, forward, layers, self._prompts, backend)
        return max(map(_error, found, self._wanted))


@contextmanager
def _failing_as_unsupported(module: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UnsupportedModel(
            f"{module.config.model_type} fails in the self-check: {type(error).__name__}: {error}"
        ) from error


def _prompts(module: Any, candidates: Sequence[tuple[AttentionLayer, ...]], max_model_len: int) -> list[list[int]]:
    """Two prompts of made-up tokens, longer than any window if that is affordable."""
    widest = max((layer.window or 0 for layers in candidates for layer in layers), default=0)
    long = min(max(_LONG, widest + _DECODED + 5), LONGEST, max_model_len)
    short = min(max(_SHORT, long // 2), max_model_len)
    vocabulary = module.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (long, short)]


def _error(mine: torch.Tensor, other: torch.Tensor) -> float:
    """Relative error of logits [tokens, vocabulary]: of the worst token, or in half precision, where a mixture of
    experts may route a token elsewhere by rounding alone, of the median one."""
    errors = (mine - other).norm(dim=-1) / other.norm(dim=-1)
    return float(errors.max() if mine.dtype == torch.float32 else errors.float().median())


@torch.inference_mode()
def _paged_logits(
    module: Any,
    forward: ForwardPass,
    layers: Sequence[AttentionLayer],
    prompts: Sequence[list[int]],
    backend: AttentionBackend,
) -> list[torch.Tensor]:
    """Logits [tokens, vocabulary] of each prompt, computed in unequal chunks, single tokens among them."""
    device, block_size = next(module.parameters()).device, backend.checked_block_size
    tables = BlockTables(BlockPool(sum(len(p) for p in prompts)), block_size, prefix_caching=False)
    shapes = [layer.shape for layer in layers]
    caches = backend.allocate(shapes, tables.pool.num_blocks, block_size, module.dtype, device)
    requests = [Request(str(i), prompt, SamplingParams(), max_tokens=1, seed=0) for i, prompt in enumerate(prompts)]
    for request in requests:
        tables.admit(request, tables.lookup(request))
    logits: dict[str, list[torch.Tensor]] = {request.request_id: [] for request in requests}
    while plan := _next_chunks(requests, tables):
        arrays = BatchArrays.of(plan, block_size)
        batch = RaggedBatch.on(device, arrays)
        flat = forward(batch, caches, torch.arange(len(batch.token_ids), device=device))
        for share, first, last in zip(arrays.order, batch.query_starts, batch.query_starts[1:], strict=False):
            logits[plan.scheduled[share].request.request_id].append(flat[first:last])
        for share in plan.scheduled:
            tables.commit(share.request, share.num_tokens)
    return [torch.cat(logits[request.request_id]) for request in requests]


def _next_chunks(requests: Sequence[Request], tables: BlockTables) -> StepPlan | None:
    """The first request gets on by half of what is left, the second by a third, the last tokens one by one."""
    shares = []
    for parts, request in enumerate(requests, start=2):
        left = request.num_uncomputed
        if left:
            shares.append(ScheduledRequest.next_of(request, 1 if left <= _DECODED else -(-left // parts)))
    if not shares:
        return None
    return StepPlan(tuple(shares), tables.gather([s.request for s in shares], max(s.end for s in shares)))


@torch.inference_mode()
def _eager_logits(module: Any, prompts: Sequence[list[int]]) -> list[torch.Tensor]:
    """Logits [tokens, vocabulary] of each prompt as `generate` would get them: the last tokens with the model's own
    cache, whose window is not always that of its masks."""
    device = next(module.parameters()).device
    keep = {"logits_to_keep": 0} if takes(module, "logits_to_keep") else {}
    module.set_attn_implementation("eager")
    try:
        logits = []
        for prompt in prompts:
            split = max(1, len(prompt) - _DECODED)
            pieces = [prompt[:split], *([token] for token in prompt[split:])]
            cache, rows = None, []
            for piece in pieces:
                output = module(torch.tensor([piece], device=device), past_key_values=cache, use_cache=True, **keep)
                cache = output.past_key_values
                rows.append(output.logits[0])
            logits.append(torch.cat(rows))
        return logits
    finally:
        module.set_attn_implementation(interface.NAME)
