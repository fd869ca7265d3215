"""Weights are rounded to int8 and int4 with little error."""

import pytest
import torch

from inflight.model.cpu.int4 import multiples, rounded_to_int4
from inflight.model.cpu.packed_linear import rounded_to_int8

pytestmark = pytest.mark.usefixtures("cpu_kernels")


def random(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).bfloat16()


def test_rounding_to_int8_changes_a_weight_by_at_most_half_a_step() -> None:
    weight = random(64, 100)
    weight[3] = 0
    whole, scales = rounded_to_int8(weight)
    assert whole.abs().amax() == 127
    assert ((whole * scales[:, None] - weight.float()).abs() <= 0.501 * scales[:, None]).all()


def squared_error(weight: torch.Tensor, whole: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Of each group of 32 weights [outputs, inputs], for whole numbers and scales [outputs, inputs / 32]."""
    rounded = whole.double() * scales.double().repeat_interleave(32, dim=1)
    return (rounded - weight.double()).square().unflatten(1, (-1, 32)).sum(dim=2)


def test_rounding_to_int4_leaves_about_the_least_error() -> None:
    weight = random(64, 96)
    weight[3] = 0
    weight[4] *= 1e-30
    weight[5, 7] = 1000
    whole, scales = rounded_to_int4(weight)
    groups = weight.double().unflatten(1, (-1, 32))
    largest = groups.abs().amax(dim=2)
    errors = []
    # The last one is that of llama.cpp's Q4_0.
    for steps in (*torch.linspace(-10, 10, 401)[[*range(180), *range(221, 401)]].tolist(), -8):
        trial = largest / steps
        trial[trial == 0] = 1
        codes = (groups / trial[:, :, None]).round().clamp(-8, 7).flatten(1)
        errors.append(squared_error(weight, codes, trial))
    mine, least = squared_error(weight, whole, scales), torch.stack(errors).amin(dim=0)
    assert not mine[3].any()
    steps = scales.double().repeat_interleave(32, dim=1)
    changes = (whole * steps - weight.double()).abs() / steps.abs()
    assert changes[(whole > -8) & (whole < 7)].max() <= 0.501
    ratio = torch.cat([mine[:3], mine[4:]]) / torch.cat([least[:3], least[4:]])
    assert ratio.mean() < 1.02
    assert ratio.max() < 1.25
    ordinary = slice(6, None)
    assert mine[ordinary].sum() < 0.85 * errors[-1][ordinary].sum()


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_multiples_of_a_scale_stay_the_same_multiples_in_int4(most: int) -> None:
    exact_multiples = torch.randint(-most - 1, most + 1, (256, 96))
    scales = random(256, 3).abs() + 0.01
    exact = exact_multiples * scales.float().repeat_interleave(32, dim=1)
    whole, found = rounded_to_int4(exact.bfloat16())
    rounded = whole * found.float().repeat_interleave(32, dim=1)
    assert torch.equal(multiples(rounded.bfloat16(), found), whole)
    # Both the weights and the scales that were found are rounded to bfloat16.
    assert ((rounded - exact).abs() <= 2**-7 * exact.abs()).all()
