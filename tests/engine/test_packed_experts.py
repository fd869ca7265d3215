"""The CPU kernels compute the experts of mixtures."""

import copy
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, NemotronHConfig

from inflight.model.cpu.int4 import GROUP, pack_int4, rounded_to_int4
from inflight.model.cpu.packed_experts import PackedExperts, round_experts_to_int4
from inflight.model.cpu.packed_linear import rounded_to_int8
from scripts.reference.tiny_models import SERVED, VOCABULARY, save_model
from tests.engine.models import alone, greedy, make_engine, make_prompt, tokens
from tests.engine.random_numbers import LINEAR_ERROR, error, random

pytestmark = pytest.mark.usefixtures("cpu_kernels")

NEMOTRON_H = NemotronHConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    hybrid_override_pattern="ME*E",
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    mamba_num_heads=8,
    mamba_head_dim=16,
    n_groups=2,
    ssm_state_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    moe_shared_expert_intermediate_size=32,
)
CONFIGS = {name: each.config for name, each in SERVED.items()} | {"nemotron_h": NEMOTRON_H}
MIXTURES = ["gpt_oss", "phimoe", "deepseek_v3", "nemotron_h"]
"""With biases and transposed weights, without, with a router in float32, and without gates."""


def pack(weights: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.ops.inflight.pack_weight(weight) for weight in weights])


class Weights(NamedTuple):
    """Weights of some experts as numbers [E, N, K], and packed."""

    numbers: torch.Tensor
    packed: torch.Tensor
    scales: tuple[torch.Tensor, ...] = ()
    """[E, N], if the weights are int8."""


def of_kind(kind: str, weights: torch.Tensor) -> Weights:
    if kind == "int8":
        whole, scales = map(torch.stack, zip(*map(rounded_to_int8, weights), strict=True))
        return Weights(whole * scales[:, :, None], pack(whole), (scales,))
    if kind == "int4":
        rounded = [rounded_to_int4(weight) for weight in weights]
        numbers = torch.stack([whole * scales.float().repeat_interleave(GROUP, dim=1) for whole, scales in rounded])
        return Weights(numbers, torch.stack([pack_int4(*each) for each in rounded]))
    return Weights(weights, pack(weights))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("counts", [[1, 0, 0, 2], [0, 40, 7, 0], [0, 0, 0, 0], [300, 1, 1, 5]])
@pytest.mark.parametrize(("inputs", "columns"), [(32, 64), (64, 1056), (1344, 32)])
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4"])
def test_each_row_is_multiplied_with_its_expert(
    kind: str, inputs: int, columns: int, counts: list[int], *, biased: bool
) -> None:
    weights, bias = of_kind(kind, random(4, columns, inputs)), random(4, columns).float() if biased else None
    suffix = "" if kind == "bfloat16" else f"_{kind}"
    of_experts, alone = (getattr(torch.ops.inflight, f"{name}{suffix}") for name in ("linear_of_experts", "linear"))
    experts = torch.arange(4).repeat_interleave(torch.tensor(counts))
    x = random(len(experts), inputs)
    y = of_experts(x, experts, weights.packed, *weights.scales, bias)
    assert y.shape == (len(experts), columns)
    for number in set(experts.tolist()):
        rows = experts == number
        own_bias = None if bias is None else bias[number].contiguous()
        own_scales = [scales[number].contiguous() for scales in weights.scales]
        assert torch.equal(y[rows], alone(x[rows], weights.packed[number], *own_scales, own_bias)), "other bits"
        wanted = x[rows].double() @ weights.numbers[number].double().T
        assert error(y[rows], wanted + (0 if bias is None else bias[number].double())) < LINEAR_ERROR


def test_inputs_need_not_be_a_multiple_of_a_tile() -> None:
    weights, experts, x = random(2, 64, 30), torch.tensor([0, 1, 1]), random(3, 30)
    y = torch.ops.inflight.linear_of_experts(x, experts, pack(weights))
    wanted = (x.double()[:, None] @ weights.double()[experts].transpose(1, 2))[:, 0]
    assert error(y, wanted) < LINEAR_ERROR


@pytest.mark.parametrize("kind", ["", "_int8", "_int4"])
def test_weights_of_another_kind_are_refused(kind: str) -> None:
    scales = (torch.ones(1, 32),) if kind == "_int8" else ()
    with pytest.raises(RuntimeError, match="weights are Float"):
        getattr(torch.ops.inflight, f"linear_of_experts{kind}")(
            random(1, 32), torch.tensor([0]), torch.zeros(1, 1, 16, 32, 2), *scales
        )


@pytest.mark.parametrize("expert", [-1, 2])
def test_an_expert_that_does_not_exist_is_refused(expert: int) -> None:
    with pytest.raises(RuntimeError, match=f"expert {expert} of 2"):
        torch.ops.inflight.linear_of_experts(random(1, 32), torch.tensor([expert]), pack(random(2, 32, 32)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_tokens", [1, 5, 100])
def test_rows_are_sorted_by_expert_and_summed_by_token(num_tokens: int, dtype: torch.dtype) -> None:
    x, weights = random(num_tokens, 64), torch.rand(num_tokens, 3).to(dtype)
    order = torch.randperm(3 * num_tokens)
    rows = torch.ops.inflight.rows_of_pairs(x, order, 3)
    assert torch.equal(rows, x[order // 3])
    found = torch.ops.inflight.sum_of_pairs(rows, order, weights)
    assert error(found, x.double() * weights.double().sum(dim=1, keepdim=True)) < LINEAR_ERROR


@pytest.mark.parametrize("name", MIXTURES)
def test_packing_is_undone(name: str, tmp_path: Path) -> None:
    save_model(copy.deepcopy(CONFIGS[name]), tmp_path)
    module = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    prompt = torch.tensor([make_prompt(20)])
    with torch.inference_mode():
        before, weights = module(prompt).logits, {key: value.clone() for key, value in module.state_dict().items()}
        packed = PackedExperts(module)
        assert any(weight.ndim == 5 for weight in module.parameters()), "nothing is packed"
        assert error(module(prompt).logits[0], before[0].double()) < 0.1
        packed.undo()
        after = module.state_dict()
        assert all(torch.equal(value, after[key]) and value.dtype == after[key].dtype for key, value in weights.items())
        assert torch.equal(module(prompt).logits, before)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize(("quantization", "dtype"), [("int8", torch.int8), ("int4", torch.uint8)])
def test_quantized_experts_compute_with_the_rounded_weights(
    quantization: str, dtype: torch.dtype, name: str, tmp_path: Path
) -> None:
    save_model(copy.deepcopy(CONFIGS[name]), tmp_path)
    module = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    prompt = torch.tensor([make_prompt(20)])
    with torch.inference_mode():
        scales = round_experts_to_int4(module) if quantization == "int4" else None
        before = module(prompt).logits[0].double()
        PackedExperts(module, quantization, scales)
        assert {weight.dtype for weight in module.parameters() if weight.ndim >= 4} == {dtype}
        assert float(((module(prompt).logits[0] - before).norm(dim=-1) / before.norm(dim=-1)).median()) < 0.05


@pytest.mark.parametrize("name", MIXTURES[:3])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_a_request_has_the_same_tokens_with_and_without_neighbours(
    quantization: str | None, name: str, tmp_path: Path
) -> None:
    save_model(copy.deepcopy(CONFIGS[name]), tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16, quantization=quantization)
    assert any(weight.ndim >= 4 for weight in engine.model.module.parameters()), "nothing is packed"
    prompts = [make_prompt(length) for length in (30, 7, 44, 1)]
    together = tokens(engine.generate(prompts, greedy(12)))
    assert together == [alone(engine, prompt, greedy(12)) for prompt in prompts]
