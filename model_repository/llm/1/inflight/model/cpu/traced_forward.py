"""Traces a model's forward pass into a graph of operators that runs without Python."""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from inflight.model.attention.interface import use_attention
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cpu.fusion import fix_choices, fuse
from inflight.model.cpu.kernel_attention import BatchTensors, KernelAttention, allocate, image_tiles
from inflight.model.cpu.torch_threads import one_torch_thread
from inflight.model.embeds.batch_embeds import BatchEmbeds
from inflight.model.embeds.use_embeds import use_embeds
from inflight.model.forward import ForwardPass, Outputs, forward, model_inputs
from inflight.model.head import head
from inflight.model.images.features import Features
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.lora.active_adapters import ActiveAdapters, use_adapters
from inflight.model.ragged_batch import RaggedBatch
from inflight.prompt_images import Ints

_CPU = torch.device("cpu")

# Operators of torch that take little time in a step, or only change shapes.
_LIGHT = frozenset(
    f"aten::{name}"
    for name in (
        *("add", "cat", "contiguous", "cos", "embedding", "expand", "index", "index_select", "mul", "neg", "permute"),
        *("reshape", "select", "sin", "size", "slice", "split_with_sizes", "squeeze", "to", "transpose", "type_as"),
        *("unsqueeze", "view", "floor_divide", "Int"),
        # What routers of mixtures compute has few numbers for each token.
        *("bitwise_not", "chunk", "copy", "div", "gather", "masked_fill", "narrow", "new_empty", "scatter", "sigmoid"),
        *("softmax", "sort", "sub", "sum", "topk", "zeros_like"),
    )
)
_LIGHT_LINEAR = 1 << 20
"""torch's own product takes little time with fewer weights than this. Routers of mixtures have such products."""


class TracedForward(ForwardPass):
    """The model's code over the CPU kernels, traced once by TorchScript.

    In a step of one token, Python takes almost half of the time. The traced graph has no fixed shapes, as the operators
    that compute shapes are traced, too. A model whose control flow depends on the values of tensors, as in some
    mixtures of experts, is traced incorrectly. So the caller must compare the results with those of the eager forward
    pass.

    TorchScript is no longer developed, but tracing takes only a second. torch.compile would take all of the time that a
    start may take.

    Raises:
        Exception: Any exception that the model's code raises while it is traced.
    """

    def __init__(
        self,
        module: Any,
        layers: Sequence[AttentionLayer],
        *,
        has_adapters: bool = False,
        images: "TracedImages | None" = None,
        has_embeds: bool = False,
    ) -> None:
        """`has_adapters`: trace what batches with LoRA adapters run. `images`: trace what batches with tokens of images
        run. `has_embeds`: trace what batches with given embeddings run. All others need a graph of their own."""
        self.is_fused, self._has_adapters, self._images, self._has_embeds = False, has_adapters, images, has_embeds
        example = _example(module, layers, images, has_adapters=has_adapters, has_embeds=has_embeds)
        with warnings.catch_warnings(), torch.inference_mode():
            # The tracer warns that it is deprecated, and that it fixes Python's control flow.
            warnings.simplefilter("ignore")
            traceable = _Traceable(module, [layer.window for layer in layers], images, has_embeds=has_embeds)
            traced: Any = torch.jit.trace(traceable, example, check_trace=False)  # type: ignore[no-untyped-call]
        self._module, self._weights = module, traced._c
        self._compile(traced.inlined_graph)

    def fused(self, *, gated: bool = True) -> "TracedForward":
        """The same forward pass with single kernels in place of sequences of operators. `gated`: see `fuse`."""
        forward = self._rewritten(lambda graph: fuse(graph, gated=gated))
        forward.is_fused = True
        return forward

    def with_fixed_choices(self) -> "TracedForward":
        """The same forward pass if it was traced with `changeable_choices`, which cannot be changed any more."""
        return self._rewritten(fix_choices)

    def _rewritten(self, rewrite: Callable[[Any], None]) -> "TracedForward":
        forward, graph = copy.copy(self), self._graph.copy()
        rewrite(graph)
        forward._compile(graph)
        return forward

    def _compile(self, graph: Any) -> None:
        self._graph = graph
        # A function keeps a graph as it is. A traced module would compile it once and not see that it was changed.
        self._function: Any = torch._C._create_function_from_graph("forward", graph)
        self._only_kernels = all(map(self._is_light, graph.nodes()))

    def _is_light(self, node: Any) -> bool:
        kind: str = node.kind()
        if kind != "aten::linear":
            # Names of operators that change their input end in "_".
            return kind.startswith(("prim::", "inflight::")) or kind.removesuffix("_") in _LIGHT
        weight = list(node.inputs())[1].node()
        while weight.kind() in ("aten::to", "aten::type_as"):
            weight = next(weight.inputs()).node()
        return bool(
            weight.kind() == "prim::GetAttr" and getattr(self._weights, weight.s("name")).numel() < _LIGHT_LINEAR
        )

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        tensors = tuple(BatchTensors.of(batch))
        with self._threads():
            positions, features = model_inputs(self._module, batch)
            arguments: list[Any] = [batch.token_ids, positions, rows, tensors, *_pages(caches)]
            if self._has_adapters and batch.adapters:
                arguments.append((batch.adapters.slots,))
            elif self._images is not None:
                assert features is not None
                tiles = image_tiles(batch) if any(self._images.ahead) else tensors[-1]
                arguments.append((tiles, features.main, *features.deeper))
            elif self._has_embeds:
                assert batch.embeds is not None
                arguments.append(tuple(batch.embeds))
            return Outputs(*self._function(self._weights, *arguments))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`. The code is not traced: next to the product of many rows, it takes no time."""
        with self._threads():
            return head(self._module, hidden)

    def _threads(self) -> AbstractContextManager[None]:
        return one_torch_thread() if self._only_kernels else nullcontext()


class TracedImages(NamedTuple):
    """What a graph for batches with tokens of images is traced for."""

    example: Features
    """Those of a token or more."""
    grid: Ints | None
    """[dimensions, tokens], positions as the model takes them beside images; None if they are like those of text."""
    ahead: Sequence[bool]
    """See `EagerForward`."""


class _Traceable(torch.nn.Module):
    def __init__(
        self,
        module: torch.nn.Module,
        windows: Sequence[int | None],
        images: TracedImages | None,
        *,
        has_embeds: bool,
    ) -> None:
        super().__init__()
        # In a tuple, so that it is no submodule: for each of those the tracer makes a module of its own, which takes
        # most of the time. The graph only needs to find the weights.
        self._model = (module,)
        for number, weight in enumerate((*module.parameters(), *module.buffers())):
            self.register_buffer(f"weight{number}", weight)
        self._windows, self._images, self._has_embeds = windows, images, has_embeds

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        batch: tuple[torch.Tensor, ...],
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        more: tuple[torch.Tensor, ...] = (),
    ) -> Outputs:
        """`more` is [tokens] slots of adapters, or, with images, their tiles and features, or given embeddings."""
        (module,) = self._model
        caches = [LayerCache(*pages) for pages in zip(keys, values, strict=True)]
        tensors, tiles, features = BatchTensors(*batch), None, None
        changed: AbstractContextManager[None] = nullcontext()
        if self._has_embeds:
            changed = use_embeds(module, BatchEmbeds(*more))
        elif self._images is None:
            if more:
                changed = use_adapters(ActiveAdapters(*more))
        else:
            others, main, *deeper = more
            tiles = [others if sees_ahead else tensors.tiles for sees_ahead in self._images.ahead]
            features = dataclasses.replace(self._images.example, main=main, deeper=tuple(deeper))
        with use_attention(KernelAttention(tensors, caches, self._windows, tiles)), changed:
            return forward(module, token_ids, positions, rows, features)


def _example(
    module: Any,
    layers: Sequence[AttentionLayer],
    images: TracedImages | None,
    *,
    has_adapters: bool,
    has_embeds: bool,
) -> tuple[Any, ...]:
    """Example arguments: one row of two tokens and one row of three, each in its own block.

    With `images`, the three are of an image. With `has_embeds`, the first two of them are given embeddings.
    """
    token_ids, positions = torch.zeros(5, dtype=torch.int64), torch.tensor([0, 1, 0, 1, 2])
    batch = BatchTensors(
        slots=torch.tensor([0, 1, 16, 17, 18]),
        partial_blocks=torch.tensor([0, 1]),
        block_tables=torch.tensor([[0], [1]]),
        tiles=torch.tensor([[0, 0, 2, 0], [1, 2, 3, 0]]),
    )
    caches = allocate([layer.shape for layer in layers], 2, 16, module.get_input_embeddings().weight.dtype, _CPU)
    more: tuple[Any, ...] = ((torch.zeros_like(token_ids),),) if has_adapters else ()
    if has_embeds:
        rows = torch.tensor([2, 3])
        more = ((rows, module.get_input_embeddings()(rows)),)
    if images is not None:
        token_ids[2:] = module.config.image_token_id
        if images.grid is not None:
            positions = positions.repeat(len(images.grid), 1)
        three = [each[:1].repeat(3, 1) for each in (images.example.main, *images.example.deeper)]
        tiles = torch.tensor([[0, 0, 2, 0, 0], [1, 2, 3, 0, 3]]) if any(images.ahead) else batch.tiles
        more = ((tiles, *three),)
    return token_ids, positions, torch.tensor([1, 4]), tuple(batch), *_pages(caches), *more


def _pages(caches: Sequence[LayerCache]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [cache.keys for cache in caches], [cache.values for cache in caches]
