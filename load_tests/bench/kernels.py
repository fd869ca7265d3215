"""The kernels of `make bench-step` one by one, compared with torch's own operators.

Shapes are those of the default model. Products use the weights of one layer after the other, and attention uses the
pages of one layer after the other, so that both come from memory as in a step. Kernels that work token by token use the
same data again, which comes from the CPU's cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional
from tqdm import tqdm

from inflight import SamplingParams
from inflight.logits_processors.factory import make_processors
from inflight.model.attention.backend import TORCH, AttentionBackend
from inflight.model.attention.interface import AttentionCall
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cpu import kernel_sampler
from inflight.model.cpu.packed_linear import rounded_to_int8
from inflight.model.loading.loader import LoadedModel
from inflight.model.ragged_batch import RaggedBatch
from inflight.model.sampling import torch_sampler
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest
from load_tests.bench.engine_step import BLOCK_SIZE, Step, Work, alternating, decodes, num_blocks, plan_of

ROWS = (1, 64)
CONTEXT = 8000
"""Tokens of each request that is sampled, all of them different."""
SAMPLING = {
    "greedy": SamplingParams(temperature=0),
    "temperature 1": SamplingParams(temperature=1.0),
    "top_p 0.95": SamplingParams(temperature=1.0, top_p=0.95),
    "top_k 50": SamplingParams(temperature=1.0, top_k=50),
    "greedy, 5 logprobs": SamplingParams(temperature=0, logprobs=5),
    "greedy, repetition penalty": SamplingParams(temperature=0, repetition_penalty=1.1),
}


@dataclass(frozen=True)
class Pair:
    """A kernel and torch's equivalent. Each function makes `count` calls, as one step does."""

    name: str
    count: int
    ours: Sequence[Step]
    torchs: Sequence[Step]


def kernels_table(model: LoadedModel) -> Iterator[str]:
    """Lines of the table of kernels."""
    yield f"| Kernel, µs a call | {' | '.join(f'{rows} rows | torch | Gain' for rows in ROWS)} |"
    yield f"|---|{'---:|---:|---:|' * len(ROWS)}"
    lines: dict[str, list[str]] = {}
    with torch.inference_mode():
        for rows in tqdm(ROWS, desc="kernel by kernel"):
            for pair in _pairs(model, rows):
                ours, torchs = (1000 * each / pair.count for each in alternating([_all(pair.ours), _all(pair.torchs)]))
                lines.setdefault(pair.name, []).append(f"{ours:.0f} | {torchs:.0f} | {torchs / ours:.2f}")
    yield from (f"| {name} | {' | '.join(cells)} |" for name, cells in lines.items())


def _all(calls: Sequence[Step]) -> Step:
    def step() -> None:
        for call in calls:
            call()

    return step


def _pairs(model: LoadedModel, rows: int) -> Iterator[Pair]:
    config: Any = model.module.config
    layers, width, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    heads, head_width = config.num_attention_heads, width // config.num_attention_heads
    x, other, weight = _random(rows, width), _random(rows, width), _random(width)
    yield from _products(x, [_random(2 * inner, width) for _ in range(layers)])
    yield _attention(model, rows)
    kernels = torch.ops.inflight

    def pair(name: str, ours: Step, torchs: Step) -> Pair:
        return Pair(name, layers, [ours] * layers, [torchs] * layers)

    yield pair("rms_norm", lambda: kernels.rms_norm(x, weight, 1e-5), lambda: _norm(x, weight))
    yield pair("add_rms_norm", lambda: kernels.add_rms_norm(x, other, weight, 1e-5), lambda: _norm(x + other, weight))
    yield pair(
        "layer_norm",
        lambda: kernels.layer_norm(x, weight, other[0], 1e-5),
        lambda: functional.layer_norm(x, (width,), weight, other[0], 1e-5),
    )
    gate, up = _random(rows, inner), _random(rows, inner)
    yield pair("silu_mul", lambda: kernels.silu_mul(gate, up), lambda: functional.silu(gate) * up)
    yield pair(
        "gelu_mul", lambda: kernels.gelu_mul(gate, up, "tanh"), lambda: functional.gelu(gate, approximate="tanh") * up
    )
    query, cos, sin = (
        _random(1, heads, rows, head_width),
        _random(1, 1, rows, head_width),
        _random(1, 1, rows, head_width),
    )
    yield pair("rotate", lambda: kernels.rotate(query, cos, sin), lambda: query * cos + _turned(query) * sin)
    yield from _sampling(rows, config.vocab_size)


def _products(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> Iterator[Pair]:
    kernels, count = torch.ops.inflight, len(weights)
    packed = [kernels.pack_weight(weight) for weight in weights]
    yield Pair(
        "linear",
        count,
        [partial(kernels.linear, x, each) for each in packed],
        [partial(functional.linear, x, each) for each in weights],
    )
    yield Pair(
        "linear_silu_mul",
        count,
        [partial(kernels.linear_silu_mul, x, each) for each in packed],
        [partial(_gated, x, each) for each in weights],
    )
    rounded = [rounded_to_int8(weight) for weight in weights]
    yield Pair(
        "linear_int8",
        count,
        [partial(kernels.linear_int8, x, kernels.pack_weight(whole), scales) for whole, scales in rounded],
        [partial(torch._weight_int8pack_mm, x, whole, scales.bfloat16()) for whole, scales in rounded],
    )


def _gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, up = functional.linear(x, weight).chunk(2, dim=-1)
    return functional.silu(gate) * up


def _attention(model: LoadedModel, rows: int) -> Pair:
    work = decodes(rows)
    count = len(model.layers)
    return Pair("paged_attention", count, [_attended(model, model.backend, work)], [_attended(model, TORCH, work)])


def _attended(model: LoadedModel, backend: AttentionBackend, work: Work) -> Step:
    """Attention of all layers to the cached tokens of a batch."""
    batch = RaggedBatch.on(model.device, BatchArrays.of(plan_of(work), BLOCK_SIZE))
    shapes = [layer.shape for layer in model.layers]
    caches = backend.allocate(shapes, num_blocks(work), BLOCK_SIZE, model.dtype, model.device)
    config: Any = model.module.config
    tokens = len(work.rows)
    calls = [
        AttentionCall(
            model.module,
            _random(1, config.num_attention_heads, tokens, shape.key_width),
            _random(1, shape.num_kv_heads, tokens, shape.key_width),
            _random(1, shape.num_kv_heads, tokens, shape.value_width),
            scaling=shape.key_width**-0.5,
            window=None,
            softcap=None,
            sinks=None,
        )
        for shape in shapes
    ]

    def attend() -> None:
        attends = backend.attend(batch, caches, [None] * len(caches))
        for call in calls:
            attends.attend(call)

    return attend


def _sampling(rows: int, vocabulary: int) -> Iterator[Pair]:
    """Sampling of a step, with everything that a server does for it: parameters, edits and results."""
    logits = 3 * _random(rows, vocabulary)  # About as far apart as those of the default model.
    for name, params in SAMPLING.items():
        scheduled = [ScheduledRequest.next_of(request, CONTEXT) for request in _requests(rows, vocabulary, params)]
        yield Pair(
            f"sample: {name}",
            1,
            [partial(_sample, kernel_sampler, logits, scheduled)],
            [partial(_sample, torch_sampler, logits, scheduled)],
        )


def _sample(way: ModuleType, logits: torch.Tensor, scheduled: Sequence[ScheduledRequest]) -> None:
    way.sample(logits, SamplingBatch.of(scheduled))


def _requests(rows: int, vocabulary: int, params: SamplingParams) -> Iterator[Request]:
    for row in range(rows):
        prompt = [(31 * row + 7 * position) % vocabulary for position in range(CONTEXT)]
        processors = make_processors(
            params, prompt_ids=prompt, stop_token_ids=frozenset(), bad_words=(), num_logits=vocabulary
        )
        yield Request(str(row), prompt, params, max_tokens=1, seed=row, processors=processors)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def _turned(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


def _random(*size: int) -> torch.Tensor:
    return torch.randn(size).bfloat16()
