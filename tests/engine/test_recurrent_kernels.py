"""The C++ kernels for recurrent layers compute what transformers' own functions compute."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from inflight.model.cpu.recurrent_steps import fast_steps, replace_steps
from inflight.model.recurrent.time_steps import bound_steps, bounded_steps

pytestmark = pytest.mark.usefixtures("cpu_kernels")


@pytest.mark.parametrize(("heads", "key_heads", "keys", "values"), [(4, 2, 24, 16), (3, 3, 128, 128)])
@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize(("function", "length"), [("recurrent", 1), ("chunk", 1), ("chunk", 70)])
def test_the_gated_delta_rule(
    function: str, length: int, has_state: bool, heads: int, key_heads: int, keys: int, values: int
) -> None:
    def inputs() -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(0)
        query, key, value, g, beta = (
            torch.randn(shape, generator=generator)
            for shape in (
                (5, length, key_heads, keys),
                (5, length, key_heads, keys),
                (5, length, heads, values),
                (5, length, heads),
                (5, length, heads),
            )
        )
        return query, key, value, -g.abs(), beta.sigmoid()

    state = torch.randn((5, heads, keys, values), generator=torch.Generator().manual_seed(1))
    others = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    rule = with_kernels("qwen3_5", f"torch_{function}_gated_delta_rule")
    wanted = rule.slow(*inputs(), initial_state=state.clone() if has_state else None, **others)
    with fast_steps():
        found = rule(*inputs(), initial_state=state if has_state else None, **others)
    assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-5)
    assert found[1] is state or not has_state, "the kernel does not serve this"


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize("limits", [(0.0, math.inf), (0.1, 1.5)])
@pytest.mark.parametrize(("heads", "groups", "width", "size"), [(4, 2, 24, 16), (3, 1, 66, 128)])
def test_a_prompt_of_mamba_2(
    heads: int, groups: int, width: int, size: int, limits: tuple[float, float], length: int, *, has_state: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dt, b, c, state, a, d, bias = (
        torch.randn(shape, generator=generator)
        for shape in (
            (2, length, heads, width),
            (2, length, heads),
            (2, length, groups, size),
            (2, length, groups, size),
            (2, heads, width, size),
            *[(heads,)] * 3,
        )
    )
    scan = with_kernels("granitemoehybrid", "mamba2_chunk_scan")
    others = {"D": d, "dt_bias": bias, "dt_softplus": True, "dt_limit": limits, "return_final_states": True}
    wanted = scan.slow(x, dt, -a.exp(), b, c, 64, initial_states=state.clone() if has_state else None, **others)
    with fast_steps():
        found = scan(x, dt, -a.exp(), b, c, 64, initial_states=state if has_state else None, **others)
    assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-4)
    assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-4)
    assert found[1] is state or not has_state, "the kernel does not serve this"


@pytest.mark.parametrize(("heads", "groups", "width", "size"), [(4, 2, 24, 16), (3, 1, 66, 128)])
def test_step_of_mamba_2(heads: int, groups: int, width: int, size: int) -> None:
    def inputs() -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(0)
        state, x, dt, a, b, c, d, bias = (
            torch.randn(shape, generator=generator)
            for shape in (
                (5, heads, width, size),
                (5, heads, width),
                (5, heads, 1),
                (heads, 1, 1),
                (5, groups, size),
                (5, groups, size),
                (heads, 1),
                (heads, 1),
            )
        )
        dt, bias = dt.expand(-1, -1, width), bias.expand(-1, width)
        return state, x, dt, -a.exp().expand(-1, width, size), b, c, d.expand(-1, width), bias

    states = []

    def kept() -> tuple[Any, ...]:
        arguments = inputs()
        states.append(arguments[0])
        return arguments

    found, wanted = both("granitemoehybrid", "mamba2_selective_state_update", kept)
    assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert_close(*states, rtol=1e-5, atol=1e-5)


def test_bounded_time_steps_of_mamba_2() -> None:
    step = with_kernels("nemotron_h", "mamba2_selective_state_update", [bound_steps])
    generator = torch.Generator().manual_seed(0)

    def after(dt: torch.Tensor, **others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        state, x, b, c = (torch.ones(size) for size in ((5, 4, 24, 16), (5, 4, 24), (5, 2, 16), (5, 2, 16)))
        a = torch.full((4, 1, 1), -1.0).expand(-1, 24, 16)
        output = step(state, x, dt.expand(-1, -1, 24), a, b, c, **others)
        return output, state

    raw, bias = torch.randn(5, 4, 1, generator=generator), torch.ones(4, 1)
    with fast_steps(), bounded_steps((1.0, 1.5)):
        found = after(raw, dt_bias=bias.expand(-1, 24), dt_softplus=True)
    assert_close(found, after(torch.nn.functional.softplus(raw + bias).clamp(1.0, 1.5)), rtol=1e-5, atol=1e-5)


def with_kernels(model: str, function: str, others: Sequence[Callable[..., None]] = ()) -> Any:
    """A function of transformers' code that calls our kernel in `fast_steps`, after `others` have replaced it, too."""
    code = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    classes = [each for each in vars(code).values() if isinstance(each, type) and issubclass(each, torch.nn.Module)]
    module = next(each for each in classes if each.__module__ == code.__name__)
    for replace in (*others, replace_steps):
        replace([module.__new__(module)])
    return getattr(code, function)


def both(model: str, function: str, inputs: Any) -> tuple[Any, Any]:
    """What a function returns with our kernel, and what transformers' own code does."""
    step = with_kernels(model, function)
    with fast_steps():
        found = step(*inputs(), dt_softplus=True)
    return found, step.slow(*inputs(), dt_softplus=True)
