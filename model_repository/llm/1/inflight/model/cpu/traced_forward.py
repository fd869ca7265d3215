"""A model's forward pass as a graph of operators that runs without Python."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from inflight.model.attention.interface import use_attention
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cpu.fusion import fuse
from inflight.model.cpu.kernel_attention import BatchTensors, KernelAttention, allocate
from inflight.model.forward import forward
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.ragged_batch import RaggedBatch

_CPU = torch.device("cpu")


class TracedForward:
    """What the model's code calls on the CPU kernels, recorded once by TorchScript's tracer.

    Of a step of one token Python takes almost half. The graph has no shapes in it: they are recorded as operators, too.
    Code that decides by what it finds in tensors, as some mixtures of experts do, is not recorded right; whoever makes
    one compares. TorchScript is frozen by its makers, but a second's recording does; torch.compile takes as long as a
    start may take.

    Raises:
        Exception: whatever the model's code raises where it is recorded.
    """

    def __init__(self, module: Any, layers: Sequence[AttentionLayer], *, fused: bool = False) -> None:
        """`fused`: let kernels do several recorded operators at once."""
        example = _example(module, layers)
        with warnings.catch_warnings(), torch.inference_mode():
            # That it is deprecated, and that Python's decisions are recorded as they fall.
            warnings.simplefilter("ignore")
            recorded = _Traceable(module, [layer.window for layer in layers])
            self._graph: Any = torch.jit.trace(recorded, example, check_trace=False)  # type: ignore[no-untyped-call]
        torch._C._jit_pass_inline(self._graph.graph)
        if fused:
            fuse(self._graph.graph)

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> torch.Tensor:
        tensors = tuple(BatchTensors.of(batch))
        logits: torch.Tensor = self._graph(batch.token_ids, batch.positions, rows, tensors, *_pages(caches))
        return logits

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """See `ForwardPass`: nothing depends on them."""

    @property
    def num_compilations(self) -> int:
        """How often TorchScript has compiled it: once for each kind of arguments, whatever their shapes."""
        return len(self._graph.get_debug_state().execution_plans)


class _Traceable(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, windows: Sequence[int | None]) -> None:
        super().__init__()
        self._module, self._windows = module, windows

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        batch: tuple[torch.Tensor, ...],
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> torch.Tensor:
        caches = [LayerCache(*pages) for pages in zip(keys, values, strict=True)]
        with use_attention(KernelAttention(BatchTensors(*batch), caches, self._windows)):
            return forward(self._module, token_ids, positions, rows)


def _example(module: Any, layers: Sequence[AttentionLayer]) -> tuple[Any, ...]:
    """Arguments for a row of two tokens and one of three, each in a block of its own."""
    positions = torch.tensor([0, 1, 0, 1, 2])
    batch = BatchTensors(
        slots=torch.tensor([0, 1, 16, 17, 18]),
        partial_blocks=torch.tensor([0, 1]),
        block_tables=torch.tensor([[0], [1]]),
        tiles=torch.tensor([[0, 0, 2, 0], [1, 2, 3, 0]]),
    )
    caches = allocate([layer.shape for layer in layers], 2, 16, module.get_input_embeddings().weight.dtype, _CPU)
    return torch.zeros_like(positions), positions, torch.tensor([1, 4]), tuple(batch), *_pages(caches)


def _pages(caches: Sequence[LayerCache]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [cache.keys for cache in caches], [cache.values for cache in caches]
