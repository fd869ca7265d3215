"""Replaces what transformers computes of recurrent layers by kernels that change states in place.

transformers' own code makes several copies of each state, and computes prompts by chunks of many small products. The
functions that are replaced have the signatures of the packages whose kernels transformers uses on GPUs.
"""

import math
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
_active = threading.local()


def replace_steps(modules: Iterable[torch.nn.Module]) -> None:
    """Let the code of these modules use the kernels in `fast_steps`, where it can. The C++ kernels must be loaded."""
    for code in {sys.modules[type(module).__module__] for module in modules}:
        for name, fast in _STEPS.items():
            slow = getattr(code, name, None)
            if slow is not None and not hasattr(slow, "slow"):
                setattr(code, name, _choosing(fast, slow))


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
    cu_seqlens: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Like `chunk_gated_delta_rule` and `fused_recurrent_gated_delta_rule` of flash-linear-attention.

    Return None if the kernel does not serve this.

    Args:
        query, key: [B, T, key heads, key width].
        value: [B, T, heads, value width].
        g: [B, T, heads], the logarithm of the decay.
        beta: [B, T, heads].
        initial_state: [B, heads, key width, value width], which becomes the final state. None: zero.
    """
    state = initial_state
    if state is None:
        state = torch.zeros(len(query), value.shape[2], key.shape[3], value.shape[3], device=query.device)
    if not _serves(state) or cu_seqlens is not None:
        return None
    queries, keys = query.float(), key.float()
    if use_qk_l2norm_in_kernel:
        queries, keys = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (queries, keys))
    queries = queries * query.shape[-1] ** -0.5
    repeats = value.shape[2] // key.shape[2]
    if repeats > 1:
        queries, keys = queries.repeat_interleave(repeats, 2), keys.repeat_interleave(repeats, 2)
    rows = (x.float().contiguous() for x in (queries, keys, value, g, beta))
    output: torch.Tensor = torch.ops.inflight.gated_delta_rule(state, *rows)
    return output.to(query.dtype), state if output_final_state else None


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
    x, times, b, c = (each[:, None] for each in (hidden_states, times, B, C))
    output = _state_space_kernel(state, x, times, A[:, 0, 0], b, c)[:, 0]
    if D is not None:
        output = output + hidden_states * D
    if z is not None:
        output = output * silu(z)
    return output.to(hidden_states.dtype)


def _state_space_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    seq_idx: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None:
    """Like `mamba_chunk_scan_combined` of mamba_ssm. Return None if the kernel does not serve this.

    Args:
        hidden_states: [B, T, heads, width].
        dt: [B, T, heads].
        A, D, dt_bias: [heads].
        B, C: [B, T, groups, N].
        initial_states: [B, heads, width, N], which become the final states. None: zero.
    """
    state = initial_states
    if state is None:
        state = torch.zeros(len(dt), *hidden_states.shape[2:], B.shape[-1], device=dt.device)
    if not _serves(state) or seq_idx is not None:
        return None
    # Time steps are rounded as in transformers.
    times = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    times = (softplus(times) if dt_softplus else times).clamp(*dt_limit)
    output = _state_space_kernel(state, hidden_states, times, A, B, C)
    if D is not None:
        output = output + D[:, None] * hidden_states.float()
    return (output, state) if return_final_states else output


def _state_space_kernel(state: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = torch.ops.inflight.state_space(state, *(x.float().contiguous() for x in inputs))
    return output


def _serves(state: torch.Tensor) -> bool:
    if state.device.type != "cpu" or state.dtype != torch.float32:
        return False
    return state.is_contiguous() and state.shape[-1] % _LANES == 0


_STEPS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _gated_delta,
    "torch_recurrent_gated_delta_rule": _gated_delta,
    "mamba2_chunk_scan": _state_space_scan,
    "mamba2_selective_state_update": _state_space,
}
