"""The CPU kernels compute the experts of mixtures."""

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, NemotronHConfig

from inflight.model.cpu.packed_experts import PackedExperts
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


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("counts", [[1, 0, 0, 2], [0, 40, 7, 0], [0, 0, 0, 0], [300, 1, 1, 5]])
@pytest.mark.parametrize(("inputs", "columns"), [(30, 64), (64, 1056), (1344, 32)])
def test_each_row_is_multiplied_with_its_expert(inputs: int, columns: int, counts: list[int], *, biased: bool) -> None:
    weights, bias = random(4, columns, inputs), random(4, columns).float() if biased else None
    experts = torch.arange(4).repeat_interleave(torch.tensor(counts))
    x = random(len(experts), inputs)
    y = torch.ops.inflight.linear_of_experts(x, experts, pack(weights), bias)
    assert y.shape == (len(experts), columns)
    for number in set(experts.tolist()):
        rows = experts == number
        own_bias = None if bias is None else bias[number].contiguous()
        packed = torch.ops.inflight.pack_weight(weights[number])
        assert torch.equal(y[rows], torch.ops.inflight.linear(x[rows], packed, own_bias)), "not the bits of `linear`"
        wanted = x[rows].double() @ weights[number].double().T + (0 if bias is None else bias[number].double())
        assert error(y[rows], wanted) < LINEAR_ERROR


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


@pytest.mark.parametrize("name", MIXTURES[:3])
def test_a_request_has_the_same_tokens_with_and_without_neighbours(name: str, tmp_path: Path) -> None:
    save_model(copy.deepcopy(CONFIGS[name]), tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16)
    assert any(weight.ndim == 5 for weight in engine.model.module.parameters()), "nothing is packed"
    prompts = [make_prompt(length) for length in (30, 7, 44, 1)]
    together = tokens(engine.generate(prompts, greedy(12)))
    assert together == [alone(engine, prompt, greedy(12)) for prompt in prompts]
