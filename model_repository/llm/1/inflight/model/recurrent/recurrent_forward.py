"""The forward pass of a model with recurrent states.

Linear layers and attention see the flat row of all tokens, as in other models. A module with a state is called once for
each `Segment` instead. It gets a cache of transformers' own that holds the states of the segment's sequences. So the
model's own code computes the states, whatever they are.
"""

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from inflight.model.attention.backend import CPU_KERNELS
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cpu.recurrent_steps import fast_steps, replace_steps
from inflight.model.cpu.torch_threads import one_torch_thread
from inflight.model.forward import EagerForward, ForwardPass, Outputs
from inflight.model.ragged_batch import RaggedBatch
from inflight.model.recurrent.segments import Segment
from inflight.model.recurrent.state_layer import StateLayer
from inflight.model.recurrent.state_pool import StatePool, as_cache
from inflight.model.recurrent.time_steps import bound_steps, bounded_steps

_active = threading.local()


class RecurrentForward(ForwardPass):
    """Runs the model's own Python code on any device. It holds the states."""

    def __init__(self, eager: EagerForward, layers: Sequence[StateLayer]) -> None:
        self._eager = eager
        self._is_fast = eager.backend is CPU_KERNELS
        if self._is_fast:
            replace_steps(layer.module for layer in layers)
        bound_steps(layer.module for layer in layers if layer.time_step_limit is not None)
        self._layers = layers
        self._pools = self._new_pools()
        for number, layer in enumerate(layers):
            divide(layer, number)

    def _new_pools(self) -> list[StatePool]:
        device = next(self._eager.module.parameters()).device
        return [StatePool(layer, device) for layer in self._layers]

    def with_own_states(self, num_slots: int) -> "RecurrentForward":
        """See `ForwardPass`."""
        other = copy.copy(self)
        other._pools = self._new_pools()
        other._reserve(num_slots)
        return other

    def _reserve(self, num_slots: int) -> None:
        for pool in self._pools:
            pool.reserve(num_slots)

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        states = batch.states
        assert states is not None, "a plan for this model has states"
        self._reserve(states.num_slots)
        if states.copies:
            for pool in self._pools:
                pool.copy(states.copies)
        with _use(self._pools, states.segments), self._fast(states.segments):
            return self._eager(batch, caches, rows)

    def _fast(self, segments: Sequence[Segment]) -> ExitStack:
        stack = ExitStack()
        if self._is_fast:
            stack.enter_context(fast_steps())
            if all(segment.has_single_tokens for segment in segments):  # torch's own operators are small.
                stack.enter_context(one_torch_thread())
        return stack

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return self._eager.head(hidden)


@contextmanager
def _use(pools: Sequence[StatePool], segments: Sequence[Segment]) -> Iterator[None]:
    """Divide the batch of the forward passes of this thread."""
    _active.pools, _active.segments = pools, segments
    try:
        yield
    finally:
        del _active.pools, _active.segments


def divide(layer: StateLayer, number: int) -> None:
    """Let a module compute segment by segment while `_use` is active, with the states of pool `number`.

    At other times, the module does what it did.
    """
    whole = getattr(layer.module.forward, "whole", layer.module.forward)
    signature = inspect.signature(whole)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not hasattr(_active, "pools"):
            return whole(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs)
        return _by_segment(layer, _active.pools[number], _active.segments, whole, arguments)

    forward.whole = whole  # type: ignore[attr-defined]
    layer.module.forward = forward


def _by_segment(
    layer: StateLayer,
    pool: StatePool,
    segments: Sequence[Segment],
    whole: Callable[..., Any],
    arguments: inspect.BoundArguments,
) -> Any:
    num_tokens = segments[-1].end
    if layer.time_step_limit is not None:
        segments = [part for segment in segments for part in segment.as_generated()]
    if layer.is_sequential:
        segments = [token for segment in segments for token in segment.tokens()]
    outputs = []
    for segment in segments:
        states = pool.read(segment.slots, continues=segment.continues)
        bound = copy.copy(arguments)
        bound.arguments = _part(arguments.arguments, segment, num_tokens)
        bound.arguments[layer.cache_argument] = as_cache(layer, states, continues=segment.continues)
        with _as_prompt(layer, segment):
            outputs.append(whole(*bound.args, **bound.kwargs))
        pool.write(segment.slots, states)
        if segment.snapshots:
            pool.copy(segment.snapshots)
    return _joined(outputs, segments)


def _as_prompt(layer: StateLayer, segment: Segment) -> AbstractContextManager[None]:
    """Let single tokens of prompts be computed as transformers computes whole prompts."""
    is_step = segment.continues and segment.has_single_tokens and segment.num_prompt[0] > 0
    return bounded_steps(layer.time_step_limit) if is_step and layer.time_step_limit is not None else nullcontext()


def _part(value: Any, segment: Segment, num_tokens: int) -> Any:
    """Return the part of an argument that belongs to a segment: that of tensors [1, tokens, ...], all of others."""
    if isinstance(value, torch.Tensor) and value.shape[:2] == (1, num_tokens):
        part = value[:, segment.first : segment.end]
        return part.transpose(0, 1) if segment.has_many else part
    if isinstance(value, dict):
        return {name: _part(each, segment, num_tokens) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_part(each, segment, num_tokens) for each in value)
    return value


def _joined(outputs: Sequence[Any], segments: Sequence[Segment]) -> Any:
    """Join what a module returned for each segment: tensors [sequences, tokens, ...], or tuples with such."""
    if isinstance(outputs[0], torch.Tensor):
        parts = [part.transpose(0, 1) if s.has_many else part for part, s in zip(outputs, segments, strict=True)]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
    if isinstance(outputs[0], tuple):
        return tuple(_joined(each, segments) for each in zip(*outputs, strict=True))
    return outputs[0]
