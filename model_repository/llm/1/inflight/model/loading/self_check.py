"""Serves two random prompts through a paged cache, in ragged batches and chunks, and compares the logits.

The reference is the model's own eager forward pass. At load time, the check finds what no config reveals: positions
that the model computes itself, state between tokens, and masks that it applies outside the attention interface.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from inflight.errors import UnsupportedModel
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.recurrent_states import StatePlan
from inflight.model.attention.backend import TORCH, AttentionBackend
from inflight.model.attention.interface import choose_attention
from inflight.model.batch_arrays import BatchArrays
from inflight.model.embeds.batch_embeds import BatchEmbeds
from inflight.model.forward import ForwardPass, Outputs, cache_argument, takes
from inflight.model.head import vocab_size
from inflight.model.images.batch_images import BatchImages
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.reading import Reading
from inflight.model.ragged_batch import RaggedBatch
from inflight.prompt_content import PromptContent
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan

logger = logging.getLogger(__name__)

_SHORT, _LONG, LONGEST = 13, 40, 640
_DECODED = 2
# Bounds on the relative error of logits. Rounding causes about 1e-6, 2e-3 and 2e-2, in this order. A wrong mask or
# position causes 1e-1 and more.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_SAME = 1e-3


class SelfCheck:
    """Holds the logits of a model's own forward pass, to compare them with the logits that serving computes.

    Raises:
        UnsupportedModel: The model's own forward pass fails, or gives no numbers.
    """

    def __init__(
        self,
        module: Any,
        readings: Sequence[Reading],
        max_model_len: int,
        *,
        reference: Callable[[], AbstractContextManager[None]] = nullcontext,
        worst: Callable[[float], float] = float,
    ) -> None:
        """The prompts exceed the thresholds of all `readings`, as far as 640 tokens and `max_model_len` allow.
        For a model that is divided over ranks, the forward pass in the context `reference` is that of the whole model,
        and `worst` returns the greatest error of all ranks, so that all decide alike.
        """
        self._module, self._reference, self._worst = module, reference, worst
        self._prompts = _prompts(module, readings, max_model_len)
        self._tolerance = _TOLERANCE.get(module.dtype, 1e-3)
        self.repeat_reference()

    def repeat_reference(self) -> None:
        """Compute the reference anew, after a change of weights that is intended and too large for the tolerance."""
        with _failing_as_unsupported(self._module), self._reference():
            self._wanted = _eager_logits(self._module, self._prompts)
        if any(logits.isnan().any() for logits in self._wanted):
            raise UnsupportedModel(
                f"{self._module.config.model_type}: its own forward pass gives logits that are not numbers; are the "
                "weights whole?"
            )

    @property
    def num_logits(self) -> int:
        """The number of logits of a token."""
        return self._wanted[0].shape[-1]

    def right_reading(self, readings: Sequence[Reading]) -> Reading:
        """Return the first reading that gives the right logits at every position. The model then attends by it.

        Raises:
            UnsupportedModel: No reading does. The message has the error of the first one.
        """
        errors = []
        for reading in readings:
            with _failing_as_unsupported(self._module):
                choose_attention(self._module, reading.attention)
                errors.append(self._error(reading.forward(self._module, TORCH), reading.layers, TORCH))
            if errors[-1] < self._tolerance:
                return reading
        raise UnsupportedModel(
            f"{self._module.config.model_type} does not come out right in ragged batches: its logits differ by "
            f"{errors[0]:.1%} from those of its own forward pass"
        )

    def passes(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> bool:
        """Whether `forward` computes the right logits over the caches of `backend`."""
        try:
            return self._error(forward, layers, backend) < self._tolerance
        except Exception as error:  # noqa: BLE001 - a model's code may raise any exception
            logger.info("%s: %s", backend.name, (str(error).strip() or repr(error)).splitlines()[-1])
            return False

    def same(
        self, forward: ForwardPass, other: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> bool:
        """Whether two forward passes give the same logits for every token, up to a relative error of `_SAME`.

        Stricter than `passes`, which lets single tokens differ in half precision.
        """
        mine, others = self._both(forward, other, layers, backend)
        differs = bool(((mine - others).norm(dim=-1) > _SAME * others.norm(dim=-1)).any() or mine.isnan().any())
        return self._worst(differs) == 0

    def gives_numbers(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> bool:
        """Whether all logits of a forward pass are numbers. It may raise any exception of the model's code."""
        found = _paged_logits(self._module, forward, layers, _requests(self._prompts), backend)
        return self._worst(any(bool(logits.isnan().any()) for logits in found)) == 0

    def similar(
        self, forward: ForwardPass, other: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> bool:
        """Whether two forward passes give the same logits up to rounding, as in `passes`."""
        return self._worst(_error(*self._both(forward, other, layers, backend))) < self._tolerance

    def _both(
        self, forward: ForwardPass, other: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [tokens, vocabulary] of all prompts by each of two forward passes."""
        logits = (
            _paged_logits(self._module, each, layers, _requests(self._prompts), backend) for each in (forward, other)
        )
        mine, others = (torch.cat(rows) for rows in logits)
        return mine, others

    def hidden_width(
        self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> int | None:
        """Return the width of the hidden states, or None if the head does not compute the logits from them alone."""
        found: list[Outputs] = []
        requests = _requests([self._prompts[1][:3]])
        wanted = torch.cat(_paged_logits(self._module, forward, layers, requests, backend, found.append))
        try:
            mine = torch.cat([forward.head(outputs.hidden) for outputs in found])
            return found[0].hidden.shape[1] if self._worst(_error(mine, wanted)) < self._tolerance else None
        except Exception as error:  # noqa: BLE001 - a model's code may raise any exception
            logger.info("the head of %s is not apart: %s", self._module.config.model_type, error)
            return None

    def own_logits(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the logits [tokens, vocabulary] that the model's own forward pass computes from its own arguments."""
        served = self._module.config._attn_implementation
        choose_attention(self._module, "eager")
        try:
            with torch.inference_mode():
                logits: torch.Tensor = self._module(**inputs, use_cache=False).logits[0]
                return logits
        finally:
            choose_attention(self._module, served)

    def same_with_inserts(
        self,
        prompt: PromptContent,
        forward: ForwardPass,
        other: ForwardPass,
        layers: Sequence[AttentionLayer],
        backend: AttentionBackend,
    ) -> bool:
        """Whether two forward passes give the same logits for a prompt with images or embeddings, as in `same`."""
        mine, others = (
            _paged_logits(self._module, each, layers, [_request_of(prompt)], backend)[0] for each in (forward, other)
        )
        return not ((mine - others).norm(dim=-1) > _SAME * others.norm(dim=-1)).any() and not mine.isnan().any()

    def error_with_inserts(
        self,
        wanted: torch.Tensor,
        prompt: PromptContent,
        forward: ForwardPass,
        layers: Sequence[AttentionLayer],
        backend: AttentionBackend,
    ) -> float | None:
        """Return the relative error of the logits of a prompt with images or embeddings, if it is too large.

        `wanted` [tokens, vocabulary] are its right logits.
        """
        (found,) = _paged_logits(self._module, forward, layers, [_request_of(prompt)], backend)
        error = _error(found, wanted)
        return None if error < self._tolerance else error

    def _error(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> float:
        found = _paged_logits(self._module, forward, layers, _requests(self._prompts), backend)
        return self._worst(max(map(_error, found, self._wanted)))


@contextmanager
def _failing_as_unsupported(module: Any) -> Iterator[None]:
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"{module.config.model_type} fails in the self-check: {type(error).__name__}: {error}"
        ) from error


def _prompts(module: Any, readings: Sequence[Reading], max_model_len: int) -> list[list[int]]:
    """Two prompts of random tokens. The first is longer than any threshold, within `LONGEST` and `max_model_len`."""
    widest = max((tokens for reading in readings for tokens in reading.thresholds), default=0)
    long = min(max(_LONG, widest + _DECODED + 5), LONGEST, max_model_len)
    short = min(max(_SHORT, long // 2), max_model_len)
    vocabulary = vocab_size(module)
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (long, short)]


def _error(mine: torch.Tensor, other: torch.Tensor) -> float:
    """Relative error of logits [tokens, vocabulary]: of the worst token in float32, of the median in half precision.

    In half precision, rounding alone may route a token to other experts of a mixture, so single tokens may differ.
    With NaN in the logits, it is infinite.
    """
    errors = (mine - other).norm(dim=-1) / other.norm(dim=-1)
    error = float(errors.max() if mine.dtype == torch.float32 else errors.float().median())
    # Comparisons with NaN are false, so `max` would overlook it.
    return math.inf if math.isnan(error) else error


def _split(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Split tokens into those that are computed as a prompt and those that are computed as output."""
    end = max(1, len(tokens) - _DECODED)
    return tokens[:end], tokens[end:]


def _requests(prompts: Sequence[list[int]]) -> list[Request]:
    """The last tokens are output, as in `_eager_logits`."""
    requests = []
    for number, tokens in enumerate(prompts):
        prompt, output = _split(tokens)
        requests.append(Request(str(number), prompt, SamplingParams(), max_tokens=len(output) + 1, seed=0))
        requests[-1].token_ids += output
    return requests


def _request_of(prompt: PromptContent) -> Request:
    return Request(
        "0", prompt.token_ids, SamplingParams(), max_tokens=1, seed=0, images=prompt.images, embeds=prompt.embeds
    )


@torch.inference_mode()
def _paged_logits(
    module: Any,
    forward: ForwardPass,
    layers: Sequence[AttentionLayer],
    requests: Sequence[Request],
    backend: AttentionBackend,
    see: Callable[[Outputs], object] = lambda outputs: None,
) -> list[torch.Tensor]:
    """Logits [tokens, vocabulary] of each prompt, computed in chunks of unequal length, some of a single token.

    `see` is called with the outputs of each step.
    """
    device, block_size = next(module.parameters()).device, backend.checked_block_size
    num_tokens = sum(len(request.token_ids) for request in requests)
    tables = BlockTables(BlockPool(num_tokens), block_size, prefix_caching=False)
    shapes = [layer.shape for layer in layers]
    caches = backend.allocate(shapes, tables.pool.num_blocks, block_size, module.dtype, device)
    for request in requests:
        tables.admit(request, tables.prefixes.lookup(request))
    logits: dict[str, list[torch.Tensor]] = {request.request_id: [] for request in requests}
    while plan := _next_chunks(requests, tables):
        arrays = BatchArrays.of(plan, block_size)
        images, embeds = BatchImages.of(plan.scheduled, arrays), BatchEmbeds.of(plan.scheduled, arrays, device)
        batch = RaggedBatch.on(device, arrays, plan.states, images, embeds)
        outputs = forward(batch, caches, torch.arange(len(batch.token_ids), device=device))
        see(outputs)
        for index, first, last in zip(arrays.order, batch.query_starts, batch.query_starts[1:], strict=False):
            logits[plan.scheduled[index].request.request_id].append(outputs.logits[first:last])
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
            end = first + (1 if left <= _DECODED else -(-left // parts))
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
def _eager_logits(module: Any, prompts: Sequence[list[int]]) -> list[torch.Tensor]:
    """Logits [tokens, vocabulary] of each prompt as transformers' `generate` computes them.

    The last tokens use the model's own cache, because its window is not always that of the model's masks.
    """
    device = next(module.parameters()).device
    keep = {"logits_to_keep": 0} if takes(module, "logits_to_keep") else {}
    cache_name = cache_argument(module)
    with_positions = _generate_gives_positions(module)
    served = module.config._attn_implementation
    choose_attention(module, "eager")
    try:
        logits = []
        for prompt in prompts:
            begin, decoded = _split(prompt)
            pieces = [begin, *([token] for token in decoded)]
            cache, rows, first = None, [], 0
            for piece in pieces:
                arguments: dict[str, Any] = {cache_name: cache, "use_cache": True, **keep}
                if with_positions:
                    # Not every model computes the right ones.
                    arguments["position_ids"] = torch.arange(first, first + len(piece), device=device)[None]
                output = module(torch.tensor([piece], device=device), **arguments)
                first += len(piece)
                cache = output.get(cache_name)
                if cache is None:
                    raise UnsupportedModel(f"{module.config.model_type} returns no cache, as encoders do")
                rows.append(output.logits[0])
            logits.append(torch.cat(rows))
        return logits
    finally:
        choose_attention(module, served)
