"""Models give the same answers with the C++ kernels, traced or not, as without them."""

import copy
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from inflight import Engine
from inflight.model.cpu.fast_norm import FastRMSNorm
from inflight.model.cpu.packed_linear import PackedLinear, round_linears_to_int4
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loading import optimize
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import Tiny, greedy, make_engine, make_prompt
from tests.parity.test_long_rope import CONFIGS as LONG_ROPE
from tests.parity.test_long_rope import PROMPTS as AROUND_THE_SWITCH

pytestmark = pytest.mark.usefixtures("cpu_kernels")


@pytest.fixture(scope="module")
def slow(first_layers: Path) -> Engine:
    """The first layers of the default model in bfloat16, computed by torch."""
    engine = make_engine(first_layers, dtype="bfloat16", kv_cache_tokens=2048, enable_kernels=False)
    assert engine.model.backend.name == "torch"
    return engine


def test_the_kernels_are_about_as_exact_as_torch_in_bfloat16(
    shallow_fast: Engine, slow: Engine, shallow: Engine
) -> None:
    assert shallow_fast.model.backend.name == "cpu kernels"
    assert any(isinstance(module, PackedLinear) for module in shallow_fast.model.module.modules())
    # Prompts have a few words, because after "the quick " alone, any rounding to bfloat16 changes the log-probability
    # by 2 to 4, which hides all other errors.
    text = (
        "the quick brown fox jumps over a lazy dog while rain falls on distant hills. Paris is the capital of France, "
        "and its river is called the Seine. In winter the days are short; people read by the fire. Water boils at one "
        "hundred degrees, unless you are high up. def add(a, b): return a + b  # adds two numbers."
    )
    prompts = [text[:length] for length in range(20, len(text), 12)]
    # The bias makes all three engines report the log-probability of the same token. Without it, they may choose
    # different ones.
    forced = [
        greedy(1, logprobs=0, logit_bias={output.token_ids[0]: 100.0})
        for output in shallow.generate(prompts, greedy(1))
    ]
    exact, with_kernels, without = (
        torch.tensor([o.logprobs[0].chosen for o in engine.generate(prompts, forced)])
        for engine in (shallow, shallow_fast, slow)
    )
    assert (with_kernels - exact).norm() < 1.3 * (without - exact).norm()


def test_the_default_model_is_traced_and_uses_every_kernel(shallow_fast: Engine) -> None:
    forward = shallow_fast.model.forward
    assert isinstance(forward, TracedForward)
    kinds = Counter(node.kind() for node in forward._graph.nodes())
    layers = len(shallow_fast.model.layers)
    assert {kind.partition("::")[2]: count for kind, count in kinds.items() if kind.startswith("inflight::")} == {
        "linear": 3 * layers + 1,
        "linear_silu_mul": layers,
        "paged_attention": layers,
        "rotate": 2 * layers,
        "add_rms_norm": 2 * layers,
        "rms_norm": 1,
    }


def test_the_layers_of_gpt2_are_computed_by_kernels(tmp_path: Path) -> None:
    """Their weights are stored transposed, in a module of transformers' own."""
    save_model(SERVED["gpt2"].config, tmp_path)
    forward = make_engine(tmp_path, dtype="bfloat16", block_size=16).model.forward
    assert isinstance(forward, TracedForward)
    kinds = Counter(node.kind() for node in forward._graph.nodes())
    assert kinds["inflight::linear"] == 4 * 3 + 1
    assert "aten::addmm" not in kinds


def test_nothing_is_compiled_while_serving(shallow_fast: Engine) -> None:
    assert num_compilations(shallow_fast) == 1
    for count, length, tokens in ((1, 1, 3), (5, 7, 2), (3, 70, 9), (40, 3, 4), (1, 600, 2)):
        shallow_fast.generate([make_prompt(length)] * count, greedy(tokens, ignore_eos=True))
    assert num_compilations(shallow_fast) == 1


def num_compilations(engine: Engine) -> int:
    """How often TorchScript has compiled the graph: once per combination of argument types, for all shapes."""
    forward = engine.model.forward
    assert isinstance(forward, TracedForward)
    return len(forward._function.get_debug_state().execution_plans)


def with_forward(engine: Engine, forward: ForwardPass) -> Engine:
    """Another engine with the same model and another forward pass."""
    return Engine(engine.config, dataclasses.replace(engine.model, forward=forward))


# The kernels do not support deepseek_v3, whose values are too narrow.
TRACED = [(kind, fused) for kind in SERVED if kind != "deepseek_v3" for fused in (False, True)]
EXACT, ROUNDED = 1e-6, 0.03


# Fused kernels round only once. In these two mixtures of experts, the last bit may then change a router's decision.
@pytest.mark.parametrize(
    ("kind", "fused"), [pair for pair in TRACED if pair not in {("phimoe", True), ("gpt_oss", True)}]
)
def test_traced_models_give_the_logprobs_of_their_python_code(kind: str, fused: bool, tmp_path: Path) -> None:
    save_model(SERVED[kind].config, tmp_path)
    traced = make_engine(tmp_path, dtype="bfloat16", block_size=16)
    model = traced.model
    assert isinstance(model.forward, TracedForward)
    if not fused:
        traced = with_forward(traced, TracedForward(model.module, model.layers))
    windows = [layer.window for layer in model.layers]
    in_python = with_forward(traced, EagerForward(model.module, model.backend, windows))
    prompts = [make_prompt(length) for length in (1, 2, 7, 16, 33, 50)]
    mine, theirs = (
        torch.tensor([o.logprobs[0].chosen for o in engine.generate(prompts, greedy(1, logprobs=1))])
        for engine in (traced, in_python)
    )
    assert torch.allclose(mine, theirs, atol=ROUNDED if fused else EXACT)


def quantized(folder: Path, quantization: str) -> Engine:
    return make_engine(folder, dtype="bfloat16", block_size=16, kv_cache_tokens=2048, quantization=quantization)


def products(engine: Engine) -> dict[str, int]:
    kinds = Counter(node.kind() for node in engine.model.forward._graph.nodes())
    return {kind: count for kind, count in kinds.items() if kind.startswith("inflight::linear")}


def difference(engine: Engine, other: Engine) -> float:
    """Mean difference of the likeliest token's log-probability."""
    prompts = [f"{number} plus {number} is" for number in range(10)]
    mine, theirs = (
        torch.tensor([o.logprobs[0].chosen for o in which.generate(prompts, greedy(1, logprobs=1))])
        for which in (engine, other)
    )
    return float((mine - theirs).abs().mean())


def test_the_default_model_in_int8_gives_nearly_the_same_logprobs(shallow_fast: Engine, first_layers: Path) -> None:
    engine = quantized(first_layers, "int8")
    layers = len(engine.model.layers)
    assert products(engine) == {"inflight::linear_int8": 3 * layers + 1, "inflight::linear_int8_silu_mul": layers}
    assert difference(engine, shallow_fast) < 0.2


def test_the_default_model_in_int4_computes_with_the_rounded_weights(slow: Engine, first_layers: Path) -> None:
    engine = quantized(first_layers, "int4")
    layers = len(engine.model.layers)
    assert products(engine) == {
        "inflight::linear_int4": 3 * layers,
        "inflight::linear_int4_silu_mul": layers,
        "inflight::linear_int8": 1,  # The head.
    }
    # Rounding itself changes the log-probabilities of this small model by much more than the bound.
    module = copy.deepcopy(slow.model.module)
    round_linears_to_int4(module)
    rounded = EagerForward(module, slow.model.backend, [layer.window for layer in slow.model.layers])
    assert difference(engine, with_forward(slow, rounded)) < 0.2


def test_a_model_of_random_weights_serves_in_int4(tiny: Tiny) -> None:
    engine = tiny.engine(dtype="bfloat16", block_size=16, quantization="int4")
    kinds = {node.kind() for node in engine.model.forward._graph.nodes()}
    assert "inflight::linear_int4_silu_mul" in kinds


@pytest.mark.parametrize(
    ("kind", "width", "warns"),
    [("llama", 96, False), ("gpt2", 96, False), ("phimoe", 96, False), ("phimoe", 104, True)],
)
def test_weights_that_stay_in_bfloat16_are_named(
    kind: str, width: int, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = copy.deepcopy(SERVED[kind].config)
    config.intermediate_size = width
    save_model(config, tmp_path)
    make_engine(tmp_path, dtype="bfloat16", quantization="int8")
    assert ("% of the weights stay in bfloat16: only linear layers are quantized" in caplog.text) == warns


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"dtype": "bfloat16", "enable_kernels": False}])
def test_int8_is_refused_where_the_kernels_do_not_serve(tiny: Tiny, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="quantization is 'int8', which needs a model in bfloat16"):
        tiny.engine(quantization="int8", **settings)


def test_code_that_cannot_be_traced_runs_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = LlamaMLP.forward

    def forward(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            raise TypeError("not like this")
        return plain(self, x)

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    save_model(SERVED["llama"].config, tmp_path)
    assert isinstance(make_engine(tmp_path, dtype="bfloat16", block_size=16).model.forward, EagerForward)
    assert "the code of llama cannot be traced and runs in Python: TypeError: not like this" in caplog.text


def test_code_whose_control_flow_depends_on_tensors_runs_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traced code would always take the branch of the example, whose tokens are all 0."""
    plain = LlamaMLP.forward

    def forward(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        return plain(self, x) if float(x.float().mean()) > 0 else plain(self, -x)

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    save_model(SERVED["llama"].config, tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16)
    assert isinstance(engine.model.forward, EagerForward)
    assert engine.model.backend.name == "cpu kernels"


@pytest.mark.slow
def test_answers_in_bfloat16_do_not_depend_on_neighbours_or_chunks(shallow_fast: Engine) -> None:
    """torch does not promise this. The kernels are batch-invariant: they add in the same order in every batch."""
    prompts = [f"{number} {'and so on ' * (number % 4)}until the {number * 7}th" for number in range(8)]
    params = greedy(8, logprobs=1)
    small_steps = Engine(dataclasses.replace(shallow_fast.config, max_num_batched_tokens=7), shallow_fast.model)
    together = shallow_fast.generate(prompts, params)
    alone = [shallow_fast.generate(prompt, params)[0] for prompt in prompts]
    in_small_steps = small_steps.generate(prompts, params)
    for outputs in (alone, in_small_steps):
        for output, other in zip(together, outputs, strict=True):
            assert output.token_ids == other.token_ids
            assert output.logprobs == other.logprobs


def test_torch_serves_a_model_that_fails_with_the_kernels(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(module: Any) -> list[tuple[Any, str, Any]]:
        norm = module.model.norm
        module.model.norm = FastRMSNorm(torch.ones(16, dtype=torch.bfloat16), 1e-6, norm)
        return [(module.model, "norm", norm)]

    monkeypatch.setattr(optimize, "replace_norms", replace)
    engine = tiny.engine(dtype="bfloat16", block_size=16)
    assert engine.model.backend.name == "torch"
    assert len(engine.generate([make_prompt(9)], greedy(4))[0].token_ids) == 4
    with pytest.raises(ValueError, match="quantization is 'int8', which fails the self-check with llama"):
        tiny.engine(dtype="bfloat16", block_size=16, quantization="int8")


def test_torch_attends_if_the_kernels_do_not_support_the_block_size(
    tiny: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    engine = tiny.engine(dtype="bfloat16", block_size=8)
    assert "the CPU kernels cannot attend: block_size is 8, keys have " in caplog.text
    assert engine.model.backend.name == "torch"
    assert any(isinstance(module, PackedLinear) for module in engine.model.module.modules())


def test_scores_of_short_and_long_sequences_are_those_of_the_model(tmp_path: Path) -> None:
    """They are in one batch, whose graph was traced with short ones. Long ones have other rotary embeddings."""
    module = save_model(LONG_ROPE["phi3"], tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16)
    assert isinstance(engine.model.forward, TracedForward)
    outputs = engine.generate(AROUND_THE_SWITCH, greedy(1, prompt_logprobs=0))
    for prompt, output in zip(AROUND_THE_SWITCH, outputs, strict=True):
        with torch.inference_mode():
            wanted = module(torch.tensor([prompt])).logits[0].log_softmax(-1)
        found = [score.chosen for score in output.prompt_logprobs or () if score is not None]
        assert found == pytest.approx([float(wanted[i, t]) for i, t in enumerate(prompt[1:])], abs=0.05)
