"""The C++ kernels agree with float64 for every shape that they support."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from inflight.model.attention.backend import CPU_KERNELS
from inflight.model.attention.interface import AttentionCall
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cache.kv_tensors import LayerShape
from inflight.model.cpu import kernel_attention
from inflight.model.cpu.fast_gelu import replace_gelus
from inflight.model.cpu.fast_norm import FastLayerNorm, FastRMSNorm, replace_norms
from inflight.model.cpu.int4 import pack_int4, rounded_to_int4
from inflight.model.cpu.packed_linear import Bits, PackedLinear, PackedLinears, WeightRoom, rounded_to_int8
from inflight.model.images.batch_images import BatchImages
from inflight.model.ragged_batch import RaggedBatch
from scripts.reference.dense_attention import CPU, GARBAGE, IMAGE_CASES, Case, dense, prompt_images
from tests.unit.builders import make_plan, make_request

pytestmark = pytest.mark.usefixtures("cpu_kernels")

# Products of bfloat16 numbers are exact in float32. The remaining errors are roundings of outputs and, in attention, of
# probabilities.
LINEAR_ERROR, ATTENTION_ERROR = 3e-3, 6e-3

EVERYTHING = [(0, 1), (15, 1), (16, 1), (100, 1), (9, 14), (31, 2), (0, 33), (0, 5)]
# Contexts of more than 256 tokens, which is the length of a part in the kernel.
LONG = [(600, 1), (250, 20), (0, 300), (511, 2)]
LAYERS = {
    "plain": {},
    "a head each": {"query_heads": 4, "shape": LayerShape(4, 16, 16)},
    "nine heads, three of keys": {"query_heads": 9, "shape": LayerShape(3, 64, 64)},
    "ten heads for one": {"query_heads": 10, "shape": LayerShape(1, 80, 80)},
    "values narrower": {"shape": LayerShape(2, 48, 32)},
    "values wider": {"shape": LayerShape(2, 32, 112)},
    "wide": {"shape": LayerShape(2, 256, 256)},
    "larger blocks": {"block_size": 48},
    "window": {"window": 21},
    "window of one": {"window": 1},
    "long window": {"window": 270},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "all at once": {"softcap": 1.5, "window": 9, "sinks": True, "query_heads": 6},
}


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error over all elements."""
    return float((found.double() - wanted).norm() / wanted.norm())


def random(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).bfloat16()


def test_rows_of_results_do_not_share_cache_sets() -> None:
    weight = torch.ops.inflight.pack_weight(random(64, 64))
    y = torch.ops.inflight.linear(random(1, 7, 64), weight)
    assert y.shape == (1, 7, 64)
    assert y.stride(1) * y.itemsize % 128 == 64, "the distance must be an odd number of cache lines of 64 bytes"
    assert torch.ops.inflight.linear(random(2, 7, 64), weight).is_contiguous(), "a model may view it in another shape"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 24, 25, 64, 100])
@pytest.mark.parametrize(("inputs", "columns"), [(2, 32), (30, 64), (576, 960), (1536, 96)])
def test_linear_agrees_with_float64(rows: int, inputs: int, columns: int) -> None:
    x, weight = random(rows, inputs), random(columns, inputs)
    y = torch.ops.inflight.linear(x, torch.ops.inflight.pack_weight(weight))
    assert error(y, x.double() @ weight.double().T) < LINEAR_ERROR


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 12, 13, 40])
def test_the_result_of_a_row_does_not_depend_on_other_rows(rows: int) -> None:
    x, packed = random(rows, 576), torch.ops.inflight.pack_weight(random(352, 576))
    together = torch.ops.inflight.linear(x, packed)
    alone = torch.cat([torch.ops.inflight.linear(row[None], packed) for row in x])
    assert torch.equal(together, alone)


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


# With more than 128 rows, the kernel computes the rows in parts, because it keeps the sums of the gates.
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 33, 100, 128, 129, 161, 300])
@pytest.mark.parametrize(("inputs", "columns"), [(30, 32), (64, 96), (576, 352)])
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


class Sequences:
    """A random sequence for each row of a case, and a cache that does not have their keys and values yet."""

    def __init__(self, case: Case) -> None:
        self.case, shape, size = case, case.shape, case.block_size
        assert kernel_attention.takes([shape], size)
        lengths = [past + new for past, new in case.rows]
        self.query = [random(length, case.query_heads, shape.key_width) for length in lengths]
        self.keys = [random(length + 1, shape.num_kv_heads, shape.key_width)[1:] for length in lengths]
        self.values = [random(length + 2, shape.num_kv_heads, shape.value_width)[2:] for length in lengths]
        self.sinks = random(case.query_heads) if case.sinks else None
        num_blocks = sum(-(-length // size) for length in lengths)
        (self._cache,) = kernel_attention.allocate([shape], num_blocks, size, torch.bfloat16, CPU)
        self._cache.keys.fill_(GARBAGE)
        self._cache.values.fill_(float("nan"))  # As if earlier requests had left NaN.
        free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
        self._requests = []
        for row, length in enumerate(lengths):
            self._requests.append(make_request(str(row), length))
            self._requests[-1].blocks = [free.pop() for _ in range(-(-length // size))]
        self.place(case.images)

    def place(self, images: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """From now on the sequences have these images, see `Case.images`."""
        self.has_images = bool(images)
        for row, parts in images.items():
            self._requests[row].images = prompt_images(parts)

    def attend(self, counts: Sequence[int]) -> dict[int, torch.Tensor]:
        """Compute attention for the next `counts[i]` tokens of each sequence i. Return the outputs by sequence.

        A sequence with a count of 0 has no row in the batch.
        """
        scheduled = [(r, count) for r, count in zip(self._requests, counts, strict=True) if count]
        plan = make_plan(*scheduled)
        arrays = BatchArrays.of(plan, self.case.block_size)
        images = BatchImages.of(plan.scheduled, arrays)
        batch = RaggedBatch.on(CPU, arrays, images=images)
        rows = [scheduled[index][0] for index in arrays.order]
        flat = [
            torch.cat([part[int(r.request_id)][r.num_computed :][: counts[int(r.request_id)]] for r in rows])
            for part in (self.query, self.keys, self.values)
        ]
        call = AttentionCall(
            nn.Identity(),
            *(part.transpose(0, 1)[None] for part in flat),
            scaling=self.case.scaling,
            window=self.case.window,
            softcap=self.case.softcap,
            sinks=self.sinks,
        )
        attention = CPU_KERNELS.attend(batch, [self._cache], [self.case.window], [self.has_images])
        output = attention.attend(call)[0]
        borders = zip(rows, batch.query_starts, batch.query_starts[1:], strict=False)
        found = {int(request.request_id): output[first:last] for request, first, last in borders}
        for request, count in zip(self._requests, counts, strict=True):
            request.num_computed += count
        return found


@pytest.mark.parametrize("rows", [EVERYTHING, LONG], ids=["short", "long"])
@pytest.mark.parametrize("layer", LAYERS)
def test_attention_agrees_with_dense_attention(layer: str, rows: Sequence[tuple[int, int]]) -> None:
    case = Case(rows, **{"shape": LayerShape(2, 32, 32), "block_size": 16, **LAYERS[layer]})
    sequences = Sequences(case)
    sequences.attend([past for past, _ in rows])
    found = sequences.attend([new for _, new in rows])
    for row, (past, _) in enumerate(rows):
        query, keys, values = sequences.query[row], sequences.keys[row], sequences.values[row]
        assert error(found[row], dense(query[past:], keys, values, case, sequences.sinks)) < ATTENTION_ERROR


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_tokens_of_images_see_them_whole(name: str) -> None:
    case = replace(IMAGE_CASES[name], shape=LayerShape(2, 32, 32))
    sequences = Sequences(replace(case, images={}))
    sequences.attend([past for past, _ in case.rows])
    sequences.place(case.images)
    found = sequences.attend([new for _, new in case.rows])
    for row, (past, _) in enumerate(case.rows):
        query, keys, values = sequences.query[row], sequences.keys[row], sequences.values[row]
        wanted = dense(query[past:], keys, values, case, sequences.sinks, case.images.get(row, ()))
        assert error(found[row], wanted) < ATTENTION_ERROR


def test_the_attention_of_an_image_does_not_depend_on_chunks_or_other_rows() -> None:
    images = {0: [(20, 60), (60, 69), (250, 281)]}
    case = Case([(0, 300), (0, 9)], shape=LayerShape(2, 32, 32), block_size=16, window=37, images=images)
    whole = Sequences(case).attend([300, 9])
    chunked = Sequences(case)
    found = [chunked.attend(chunk) for chunk in [(20, 9), (49, 0), (180, 0), (1, 0), (37, 0), (13, 0)]]
    assert torch.equal(torch.cat([outputs[0] for outputs in found]), whole[0])
    assert torch.equal(found[0][1], whole[1])


@pytest.mark.parametrize("layer", LAYERS)
def test_the_attention_of_a_token_does_not_depend_on_chunks_or_other_rows(layer: str) -> None:
    case = Case([(0, 300), (0, 9)], **{"shape": LayerShape(2, 32, 32), "block_size": 16, **LAYERS[layer]})
    whole = Sequences(case).attend([300, 9])
    chunked, chunks = Sequences(case), [(7, 9), (242, 0), (9, 0), (1, 0), (17, 0), (23, 0), (1, 0)]
    found = [chunked.attend(chunk) for chunk in chunks]
    assert torch.equal(torch.cat([outputs[0] for outputs in found]), whole[0])
    assert torch.equal(found[0][1], whole[1])


@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("width", [16, 64, 576])
def test_rms_norm_agrees_with_float64(rows: int, width: int) -> None:
    x, weight = random(rows, 2, width)[:, 1], random(width)
    exact = x.double()
    wanted = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert error(torch.ops.inflight.rms_norm(x, weight, 1e-6), wanted) < LINEAR_ERROR


@pytest.mark.parametrize("rows", [1, 70])
def test_add_rms_norm_equals_an_addition_and_rms_norm(rows: int) -> None:
    x, y, weight = random(1, rows, 64), random(1, rows, 128)[..., :64], random(64)
    normed, total = torch.ops.inflight.add_rms_norm(x, y, weight, 1e-6)
    assert torch.equal(total, x + y)
    assert torch.equal(normed, torch.ops.inflight.rms_norm(total, weight, 1e-6))


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("width", [16, 40, 96])
def test_silu_mul_agrees_with_float64(rows: int, width: int) -> None:
    both = random(1, rows, 2 * width + 8) * 5
    both[0, 0, :4] = torch.tensor([100.0, -100.0, 0.0, -0.0])
    gate, up = both[..., :width], both[..., -width:]
    wanted = nn.functional.silu(gate.double()) * up.double()
    assert error(torch.ops.inflight.silu_mul(gate, up), wanted) < LINEAR_ERROR


@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("width", [16, 40, 96])
def test_gelu_agrees_with_float64(rows: int, width: int, approximate: str) -> None:
    both = random(1, rows, 2 * width + 8) * 3
    both[0, 0, :6] = torch.tensor([100.0, -100.0, 0.0, -0.0, 3e38, -3e38])
    gate, up = both[..., :width], both[..., -width:]
    wanted = nn.functional.gelu(gate.double(), approximate=approximate)
    found = torch.ops.inflight.gelu(gate, approximate)
    assert ((found.double() - wanted).abs() <= 4e-3 * wanted.abs() + 1e-6).all()
    gate, up, wanted = (each[..., 6:] for each in (gate, up, wanted))
    assert error(torch.ops.inflight.gelu_mul(gate, up, approximate), wanted * up.double()) < LINEAR_ERROR


def test_gelu_keeps_what_is_no_number() -> None:
    x = torch.full((1, 16), float("nan"), dtype=torch.bfloat16)
    x[0, 0] = float("inf")
    for approximate in ("tanh", "none"):
        found = torch.ops.inflight.gelu(x, approximate)[0]
        assert found[0] == float("inf")
        assert found[1:].isnan().all()


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("width", [16, 64, 576])
def test_layer_norm_agrees_with_float64(rows: int, width: int, has_bias: bool) -> None:
    x, weight, bias = random(rows, 2, width)[:, 1] + 5, random(width), random(2, width)[0] if has_bias else None
    wanted = nn.functional.layer_norm(
        x.double(), (width,), weight.double(), None if bias is None else bias.double(), 1e-5
    )
    assert error(torch.ops.inflight.layer_norm(x, weight, bias, 1e-5), wanted) < LINEAR_ERROR


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("width", [2, 20, 64])
def test_rotate_agrees_with_float64(tokens: int, width: int) -> None:
    x = random(1, tokens, 3, width + 4).transpose(1, 2)[..., 4:]
    cos, sin = random(1, 1, tokens, width), random(2, 1, tokens, width)[:1]
    left, right = x.double().chunk(2, dim=-1)
    wanted = x.double() * cos.double() + torch.cat([-right, left], dim=-1) * sin.double()
    assert error(torch.ops.inflight.rotate(x, cos, sin), wanted) < LINEAR_ERROR
    tokens_first = [each.transpose(1, 2) for each in (x, cos, sin)]
    assert error(torch.ops.inflight.rotate(*tokens_first), wanted.transpose(1, 2)) < LINEAR_ERROR
    in_float32 = torch.ops.inflight.rotate(x, cos.float(), sin.float())
    assert torch.equal(in_float32, torch.ops.inflight.rotate(x, cos, sin))


def test_norms_are_replaced_only_if_they_behave_like_ours() -> None:
    class PlusOneRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(random(32), requires_grad=False), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
            return (normed * (1 + self.weight.float())).to(x.dtype)

    class OddRMSNorm(PlusOneRMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 0.5

    layer = nn.LayerNorm(32).bfloat16()
    layer.weight, layer.bias = (nn.Parameter(random(rows, 32)[0], requires_grad=False) for rows in (2, 3))

    class ChannelsLayerNorm(nn.LayerNorm):
        """As in encoders of images: the channels of x [images, channels, height, width]."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    norms = {"plus_one": PlusOneRMSNorm(), "odd": OddRMSNorm(), "channels": ChannelsLayerNorm(32).bfloat16()}
    model = nn.ModuleDict({**norms, "layer": layer})
    x, odd = random(4, 32) + 2, model["odd"]
    wanted = [model[name](x).double() for name in ("plus_one", "layer")]
    assert [name for _, name, _ in replace_norms(model)] == ["plus_one", "layer"]
    assert [type(model[name]) for name in ("plus_one", "layer")] == [FastRMSNorm, FastLayerNorm]
    assert all(error(model[name](x), each) < 1e-2 for name, each in zip(("plus_one", "layer"), wanted, strict=True))
    assert model["odd"] is odd


@pytest.mark.parametrize(
    ("name", "approximate"),
    [
        *(("gelu", "none"), ("gelu_python", "none"), ("gelu_pytorch_tanh", "tanh"), ("gelu_python_tanh", "tanh")),
        *(("gelu_new", "tanh"), ("gelu_fast", "tanh"), ("quick_gelu", None), ("gelu_10", None)),
    ],
)
def test_activations_are_replaced_only_if_they_behave_like_gelu(name: str, approximate: str | None) -> None:
    model = nn.ModuleDict({"act": ACT2FN[name]})
    x = random(4, 64) * 3
    wanted = model["act"](x.double())
    assert len(replace_gelus(model)) == (approximate is not None)
    assert getattr(model["act"], "_approximate", None) == approximate
    assert error(model["act"](x), wanted) < 1e-2
