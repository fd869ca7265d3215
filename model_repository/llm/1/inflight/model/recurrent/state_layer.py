"""A dry run that finds the modules of a model that keep recurrent states, and the shapes of the states."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from inflight.errors import UnsupportedModel
from inflight.model.attention.interface import AttentionCall, use_attention
from inflight.model.forward import cache_argument
from inflight.model.loading.attention_probe import placeholder
from inflight.model.recurrent.time_steps import TimeStepLimit, time_step_limit


class StateShape(NamedTuple):
    """One of the tensors of a layer's state."""

    is_convolution: bool
    """Whether it holds the last inputs of a convolution. Otherwise it is the state of a recurrence."""
    number: int
    """transformers' `state_idx`."""
    shape: tuple[int, ...]
    """Without the dimension of the sequences, which comes first."""
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes for one sequence."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class StateLayer:
    """A module that reads and writes recurrent states in its forward pass."""

    module: torch.nn.Module
    layer_index: int
    """transformers' `layer_idx`."""
    cache_argument: str
    """The argument of the module's `forward` by which it gets the cache."""
    num_states: int
    """How many convolutions with a state the layer has, over all its modules."""
    states: tuple[StateShape, ...]
    bytes_per_token: int = 0
    """Further bytes for each token of a sequence."""
    time_step_limit: TimeStepLimit | None = None
    """Bounds that hold in prompts alone. Then output is computed in single tokens, and prompts cannot reuse it."""
    is_sequential: bool = False
    """Whether the module computes only single tokens right after others: it begins anew with several."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the states of one sequence."""
        return sum(state.num_bytes for state in self.states)


def probe_states(module: torch.nn.Module) -> tuple[StateLayer, ...]:
    """Run three tokens through a model with a cache of transformers' own. Return the modules that keep states in it.

    Raises:
        UnsupportedModel: The model fails, or its cache is not one whose states can be kept apart.
    """
    config: Any = module.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
    tokens = torch.arange(3, device=next(module.parameters()).device)
    try:
        cache = _Recorder(config)
        with cache.recording(module), use_attention(_NoAttention()), torch.inference_mode():
            module(input_ids=tokens[None], position_ids=tokens[None], **{cache_argument(module): cache})
    except Exception as error:
        raise UnsupportedModel(f"{config.model_type} fails with a cache: {type(error).__name__}: {error}") from error
    return cache.layers_found()


class _Recorder(DynamicCache):
    """A cache that notes which module writes which state."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self._running: list[tuple[torch.nn.Module, str | None]] = []
        """The modules whose `forward` runs, the innermost one last, each with the argument that is this cache."""
        self._found: dict[tuple[torch.nn.Module, int], tuple[str, list[StateShape]]] = {}

    @contextmanager
    def recording(self, model: torch.nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for each in model.modules():
                begins = each.register_forward_pre_hook(self._begins, with_kwargs=True)
                ends = each.register_forward_hook(self._ends)
                stack.callback(begins.remove)
                stack.callback(ends.remove)
            yield

    def _begins(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        self._running.append((module, next((name for name, value in bound.items() if value is self), None)))

    def _ends(self, *_: Any) -> None:
        self._running.pop()

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        """Note the module, and do what the base class does."""
        full = super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)
        kept = self.get_conv_state(layer_idx, state_idx)
        assert kept is not None
        self._note(layer_idx, StateShape(True, state_idx, tuple(kept.shape[1:]), kept.dtype))
        return full

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Any:
        """Note the module, and do what the base class does."""
        kept = super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **kwargs)
        self._note(layer_idx, StateShape(False, state_idx, tuple(kept.shape[1:]), kept.dtype))
        return kept

    def _note(self, layer_index: int, state: StateShape) -> None:
        module, argument = self._running[-1]
        kind = type(module).__name__
        if argument is None:
            raise UnsupportedModel(f"{kind} keeps a state in a cache that is not among its arguments")
        _, states = self._found.setdefault((module, layer_index), (argument, []))
        if state in states:
            raise UnsupportedModel(f"{kind} changes its state more than once in a forward pass")
        states.append(state)

    def layers_found(self) -> tuple[StateLayer, ...]:
        return tuple(
            StateLayer(
                module, index, argument, self._num_states(index), tuple(states), time_step_limit=time_step_limit(module)
            )
            for (module, index), (argument, states) in self._found.items()
        )

    def _num_states(self, index: int) -> int:
        layer = self.layers[index]
        assert isinstance(layer, LinearAttentionCacheLayerMixin)
        return int(layer.number_of_states)


class _NoAttention:
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return placeholder(call)
