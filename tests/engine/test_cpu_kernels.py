"""The C++ kernels for matrix products agree with float64 for every shape that they support."""

import weakref
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn

from inflight.model.cpu.int4 import pack_int4, rounded_to_int4
from inflight.model.cpu.packed_linear import Bits, PackedLinear, PackedLinears, WeightRoom, rounded_to_int8
from tests.engine.random_numbers import LINEAR_ERROR, error, random

pytestmark = pytest.mark.usefixtures("cpu_kernels")


def test_rows_of_results_do_not_share_cache_sets() -> None:
    weight = torch.ops.inflight.pack_weight(random(64, 64))
    y = torch.ops.inflight.linear(random(1, 7, 64), weight)
    assert y.shape == (1, 7, 64)
    assert y.stride(1) * y.itemsize % 128 == 64, "the distance must be an odd number of cache lines of 64 bytes"
    assert torch.ops.inflight.linear(random(2, 7, 64), weight).is_contiguous(), "a model may view it in another shape"


@pytest.fixture
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("new_memory_is_nan")
@pytest.mark.parametrize("width", [97, 98, 112])
def test_what_lies_between_rows_is_numbers(width: int) -> None:
    """torch's own product of bfloat16 rows of 97 or 98 numbers reads more than these."""
    y = torch.ops.inflight.silu_mul(random(1, 80, width), random(1, 80, width))
    assert y.stride(1) > width
    assert nn.functional.linear(y, random(64, width)).isfinite().all()
    assert not y.as_strided((80, y.stride(1)), (y.stride(1), 1))[:, width:].any()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 24, 25, 64, 100])
@pytest.mark.parametrize(("inputs", "columns"), [(2, 32), (30, 64), (576, 960), (1536, 96)])
def test_linear_agrees_with_float64(rows: int, inputs: int, columns: int) -> None:
    x, weight = random(rows, inputs), random(columns, inputs)
    y = torch.ops.inflight.linear(x, torch.ops.inflight.pack_weight(weight))
    assert error(y, x.double() @ weight.double().T) < LINEAR_ERROR


# With AMX, products of 33 panels are computed in groups of panels, of 1,344 inputs in parts, and of 300 rows in parts.
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 12, 13, 40, 300])
@pytest.mark.parametrize(("inputs", "columns"), [(576, 352), (1344, 33 * 32)])
def test_the_result_of_a_row_does_not_depend_on_other_rows(rows: int, inputs: int, columns: int) -> None:
    x, weight = random(rows, inputs), random(columns, inputs)
    packed = torch.ops.inflight.pack_weight(weight)
    together = torch.ops.inflight.linear(x, packed)
    alone = torch.cat([torch.ops.inflight.linear(row[None], packed) for row in x])
    assert torch.equal(together, alone)
    assert error(together, x.double() @ weight.double().T) < LINEAR_ERROR


# With AMX, SIMD computes up to four rows, and the matrix unit more.
@pytest.mark.parametrize("bits", [4, 8])
def test_few_rows_with_quantized_weights_have_the_bits_of_many(bits: Bits) -> None:
    x = random(64, 640) * torch.logspace(-42, 30, 64)[:, None].bfloat16()
    if bits == 4:
        multiply = partial(torch.ops.inflight.linear_int4, packed=pack_int4(*rounded_to_int4(random(64, 640))))
    else:
        weight, scales = rounded_to_int8(random(64, 640))
        packed = torch.ops.inflight.pack_weight(weight)
        multiply = partial(torch.ops.inflight.linear_int8, packed=packed, scales=scales)
    together = multiply(x)
    assert together.isfinite().all()
    for count in range(1, 7):
        assert torch.equal(torch.cat([multiply(rows) for rows in x.split(count)]), together)


def test_linear_reads_rows_that_are_not_contiguous() -> None:
    x, weight = random(5, 100)[:, 10:74], random(32, 64)
    y = torch.ops.inflight.linear(x, torch.ops.inflight.pack_weight(weight))
    assert error(y, x.double() @ weight.double().T) < LINEAR_ERROR


@pytest.mark.parametrize("rows", [1, 3, 6, 7, 12, 13, 64])
@pytest.mark.parametrize(("inputs", "columns"), [(2, 32), (30, 352), (1536, 96), (20_000, 32)])
def test_linear_int8_agrees_with_float64(rows: int, inputs: int, columns: int) -> None:
    x = random(rows, inputs) * torch.logspace(-6, 6, rows, dtype=torch.bfloat16)[:, None]
    weight, scales = rounded_to_int8(random(columns, inputs))
    y = torch.ops.inflight.linear_int8(x, torch.ops.inflight.pack_weight(weight), scales)
    wanted = x.double() @ (weight.double() * scales.double()[:, None]).T
    assert max(error(mine, right) for mine, right in zip(y, wanted, strict=True)) < LINEAR_ERROR


@pytest.mark.parametrize("rows", [1, 3, 6, 7, 12, 13, 64])
@pytest.mark.parametrize(("inputs", "columns"), [(32, 32), (96, 352), (1536, 96), (20_000, 32)])
def test_linear_int4_agrees_with_float64(rows: int, inputs: int, columns: int) -> None:
    x = random(rows, inputs) * torch.logspace(-6, 6, rows, dtype=torch.bfloat16)[:, None]
    whole, scales = rounded_to_int4(random(columns, inputs))
    packed = pack_int4(whole, scales)
    y = torch.ops.inflight.linear_int4(x, packed)
    wanted = x.double() @ (whole.double() * scales.double().repeat_interleave(32, dim=1)).T
    assert max(error(mine, right) for mine, right in zip(y, wanted, strict=True)) < LINEAR_ERROR
    assert torch.equal(y, torch.cat([torch.ops.inflight.linear_int4(row[None], packed) for row in x]))


def test_linear_int4_refuses_weights_that_are_packed_otherwise() -> None:
    with pytest.raises(RuntimeError, match=r"weights are Byte \[1, 1, 512\], not bytes \[n, k, 576\]"):
        torch.ops.inflight.linear_int4(random(1, 32), torch.zeros(1, 1, 512, dtype=torch.uint8))


# With AMX, the kernel computes more than 256 rows in parts, because it keeps the sums of the gates.
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 33, 100, 128, 129, 161, 300])
@pytest.mark.parametrize(("inputs", "columns"), [(30, 32), (64, 96), (576, 352), (1344, 17 * 32)])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_linear_silu_mul_agrees_with_float64(rows: int, inputs: int, columns: int, bits: Bits) -> None:
    if bits == 4 and inputs % 32:
        pytest.skip("int4 needs whole groups")
    x, weight = random(rows, inputs), random(2 * columns, inputs) / inputs**0.5
    exact = weight.double()
    if bits == 4:
        whole, scales = rounded_to_int4(weight)
        exact = whole.double() * scales.double().repeat_interleave(32, dim=1)
        multiply = partial(torch.ops.inflight.linear_int4_silu_mul, packed=pack_int4(whole, scales))
    elif bits == 8:
        whole, scales = rounded_to_int8(weight)
        exact = whole.double() * scales.double()[:, None]
        packed = torch.ops.inflight.pack_weight(whole)
        multiply = partial(torch.ops.inflight.linear_int8_silu_mul, packed=packed, scales=scales)
    else:
        multiply = partial(torch.ops.inflight.linear_silu_mul, packed=torch.ops.inflight.pack_weight(weight))
    gate, up = (x.double() @ exact.T).chunk(2, dim=-1)
    y = multiply(x)
    assert error(y, nn.functional.silu(gate) * up) < 2 * LINEAR_ERROR
    assert torch.equal(y, torch.cat([multiply(row[None]) for row in x]))


def test_linear_silu_mul_refuses_an_odd_number_of_panels() -> None:
    packed = torch.ops.inflight.pack_weight(random(96, 64))
    with pytest.raises(RuntimeError, match="half of 3 panels"):
        torch.ops.inflight.linear_silu_mul(random(2, 64), packed)


def test_non_finite_numbers_affect_only_their_own_row_in_int8() -> None:
    x, (weight, scales) = random(4, 64), rounded_to_int8(random(32, 64))
    x[1, 5], x[2, 7], x[3] = float("nan"), float("-inf"), 0
    y = torch.ops.inflight.linear_int8(x, torch.ops.inflight.pack_weight(weight), scales)
    assert y.isfinite().all(dim=1).tolist() == [True, False, False, True]
    assert not y[3].any()


def test_linear_takes_any_number_of_dimensions() -> None:
    x, packed = random(2, 3, 64), torch.ops.inflight.pack_weight(random(32, 64))
    assert torch.equal(
        torch.ops.inflight.linear(x, packed), torch.ops.inflight.linear(x.flatten(0, 1), packed).view(2, 3, 32)
    )
    assert torch.ops.inflight.linear(x[:0], packed).shape == (0, 3, 32)


def test_sibling_layers_are_right_in_any_order_of_calls() -> None:
    layers = [nn.Linear(64, columns, bias=bias, dtype=torch.bfloat16) for columns, bias in [(40, True), (32, False)]]
    group = PackedLinears(layers, WeightRoom(dict.fromkeys(layers, 16)))
    packed = [PackedLinear(layer, group, index) for index, layer in enumerate(layers)]
    x, other = random(1, 7, 64), random(1, 3, 64)
    with torch.inference_mode():
        # The order of a model; the reverse order; different inputs; an input that one of them has seen before.
        for order in [(0, x), (1, x)], [(1, x), (0, x)], [(0, x), (1, other)], [(0, other), (1, other)]:
            for index, given in order:
                assert error(packed[index](given), layers[index](given).double()) < 2 * LINEAR_ERROR


def test_sibling_layers_free_their_product_after_the_last_call() -> None:
    layers = [nn.Linear(64, 32, bias=False, dtype=torch.bfloat16) for _ in range(2)]
    group = PackedLinears(layers, WeightRoom(dict.fromkeys(layers, 16)))
    x = random(5, 64)
    outputs = [weakref.ref(group.columns(index, x)._base) for index in range(2)]
    assert [output() for output in outputs] == [None, None]
