"""Replaces what transformers computes for single tokens of recurrent layers by kernels that change states in place.

transformers' own code makes several copies of each state. The functions that are replaced have the signatures of the
packages whose kernels transformers uses on GPUs.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.nn.functional import silu, softplus

from inflight.model.recurrent.time_steps import are_bounded

_LANES = 16
# transformers pads each chunk of Mamba-2 to its whole size, and the work within a chunk grows with the square of it.
# Models come with 256. With 64, prompts of 100 tokens take a quarter of the time, and those of 1,000 two thirds.
_CHUNK = 64
_active = threading.local()


def replace_steps(modules: Iterable[torch.nn.Module]) -> None:
    """Let the code of these modules use the kernels in `fast_steps`, where it can. The C++ kernels must be loaded."""
    for code in {sys.modules[type(module).__module__] for module in modules}:
        for name, fast in _STEPS.items():
            slow = getattr(code, name, None)
            if slow is not None and not hasattr(slow, "slow"):
                setattr(code, name, _choosing(fast, slow))


def shorten_chunks(modules: Iterable[torch.nn.Module]) -> None:
    """Let Mamba-2 compute prompts in chunks that suit a CPU. The result is the same up to rounding."""
    for module in modules:
        size = getattr(module, "chunk_size", None)
        if isinstance(size, int) and size > _CHUNK:
            module.chunk_size = _CHUNK  # type: ignore[assignment]


@contextmanager
def fast_steps() -> Iterator[None]:
    """Use the kernels in this thread."""
    _active.is_on = True
    try:
        yield
    finally:
        _active.is_on = False


def _choosing(fast: Callable[..., Any], slow: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(slow)
    def step(*args: Any, **kwargs: Any) -> Any:
        found = fast(*args, **kwargs) if getattr(_active, "is_on", False) else None
        return slow(*args, **kwargs) if found is None else found

    step.slow = slow  # type: ignore[attr-defined]
    return step


def _gated_delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Like `fused_recurrent_gated_delta_rule` of flash-linear-attention. Return None if the kernel does not serve this.

    Args:
        query, key: [B, 1, key heads, key width].
        value: [B, 1, heads, value width].
        g: [B, 1, heads], the logarithm of the decay.
        beta: [B, 1, heads].
        initial_state: [B, heads, key width, value width], which becomes the final state.
    """
    if not _serves(initial_state) or query.shape[1] != 1:
        return None
    queries, keys = query[:, 0].float(), key[:, 0].float()
    if use_qk_l2norm_in_kernel:
        queries, keys = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (queries, keys))
    queries = queries * query.shape[-1] ** -0.5
    repeats = value.shape[2] // key.shape[2]
    if repeats > 1:
        queries, keys = queries.repeat_interleave(repeats, 1), keys.repeat_interleave(repeats, 1)
    rows = (x.float().contiguous() for x in (queries, keys, value[:, 0], g[:, 0], beta[:, 0]))
    output = torch.ops.inflight.gated_delta_step(initial_state, *rows)
    return output[:, None].to(query.dtype), initial_state if output_final_state else None


def _state_space(
    state: torch.Tensor,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    z: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor | None:
    """Like `selective_state_update` of mamba_ssm. Return None if the kernel does not serve this.

    Args:
        state: [sequences, heads, width, N], which is changed.
        hidden_states, z: [sequences, heads, width].
        dt: [sequences, heads, width], the same in all of the width.
        A: [heads, width, N], the same in all of width and N.
        B, C: [sequences, groups, N].
        D, dt_bias: [heads, width].
    """
    shared = dt.stride(-1) == 0 and A.stride()[1:] == (0, 0) and (dt_bias is None or dt_bias.stride(-1) == 0)
    if not _serves(state) or not shared or are_bounded():
        return None
    times = dt[..., 0].float()
    if dt_bias is not None:
        times = times + dt_bias[..., 0].float()
    if dt_softplus:
        times = softplus(times)
    rows = (x.float().contiguous() for x in (hidden_states, times, A[:, 0, 0], B, C))
    output: torch.Tensor = torch.ops.inflight.state_space_step(state, *rows)
    if D is not None:
        output = output + hidden_states * D
    if z is not None:
        output = output * silu(z)
    return output.to(hidden_states.dtype)


def _serves(state: torch.Tensor | None) -> bool:
    if state is None or state.device.type != "cpu" or state.dtype != torch.float32:
        return False
    return state.is_contiguous() and state.shape[-1] % _LANES == 0


_STEPS: dict[str, Callable[..., Any]] = {
    "torch_recurrent_gated_delta_rule": _gated_delta,
    "mamba2_selective_state_update": _state_space,
}
