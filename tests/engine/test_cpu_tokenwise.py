"""The C++ kernels between matrix products agree with float64, and replace only what computes the same."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from inflight.model.cpu.fast_gelu import replace_gelus
from inflight.model.cpu.fast_norm import FastLayerNorm, FastRMSNorm, replace_norms
from tests.engine.random_numbers import LINEAR_ERROR, error, random

pytestmark = pytest.mark.usefixtures("cpu_kernels")


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

    class WeightlessRMSNorm(PlusOneRMSNorm):
        """As in Falcon Mamba, where the rows are not as wide as the weight, which is not used."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps).to(x.dtype)

    weightless = WeightlessRMSNorm()
    nn.init.ones_(weightless.weight)
    norms = {"plus_one": PlusOneRMSNorm(), "odd": OddRMSNorm(), "channels": ChannelsLayerNorm(32).bfloat16()}
    model = nn.ModuleDict({**norms, "weightless": weightless, "layer": layer})
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
