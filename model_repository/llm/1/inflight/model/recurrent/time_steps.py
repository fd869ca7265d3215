"""The bounds of Mamba-2's time steps, which hold for the tokens of a prompt but not for output.

transformers computes many tokens by a scan, and a single token after others by a step. Only the scan bounds the time
steps. So in `generate`, they are bounded in the prompt alone. A batch may have a single token of a prompt, too: its
step must have the bounds of the scan.
"""

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.nn.functional import softplus

TimeStepLimit = tuple[float, float]
"""The least and the greatest time step."""

_STEP = "mamba2_selective_state_update"
_active = threading.local()


def time_step_limit(module: torch.nn.Module) -> TimeStepLimit | None:
    """Return the bounds that a module has for prompts alone. None if there are none: any time step is above 0."""
    limit = getattr(module, "time_step_limit", None)
    if limit is None or not hasattr(sys.modules[type(module).__module__], _STEP):
        return None
    least, greatest = limit
    return None if least <= 0 and greatest == math.inf else (least, greatest)


def bound_steps(modules: Iterable[torch.nn.Module]) -> None:
    """Let the code of these modules bound the time steps of single tokens in `bounded_steps`."""
    for code in {sys.modules[type(module).__module__] for module in modules}:
        step = getattr(code, _STEP)
        if not hasattr(step, "can_be_bounded"):
            setattr(code, _STEP, _bounding(step))


@contextmanager
def bounded_steps(limit: TimeStepLimit) -> Iterator[None]:
    """Bound the time steps of single tokens in this thread."""
    _active.limit = limit
    try:
        yield
    finally:
        del _active.limit


def are_bounded() -> bool:
    """Whether `bounded_steps` is active in this thread."""
    return hasattr(_active, "limit")


def _bounding(step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(step)
    def bounded(
        state: torch.Tensor,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        *args: Any,
        dt_bias: torch.Tensor | None = None,
        dt_softplus: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        if are_bounded():
            # As in the scan, in its precision.
            dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
            dt = (softplus(dt) if dt_softplus else dt).clamp(*_active.limit)
            dt_bias, dt_softplus = None, False
        return step(state, hidden_states, dt, *args, dt_bias=dt_bias, dt_softplus=dt_softplus, **kwargs)

    bounded.can_be_bounded = True  # type: ignore[attr-defined]
    return bounded
