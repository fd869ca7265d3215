"""The self-check compares a mixture with the experts that its reference chose, where rounding decides."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GptOssConfig

from inflight import EngineConfig
from inflight.model.attention.backend import CPU_KERNELS, TORCH
from inflight.model.attention.interface import attending_by
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.loading.reading import with_our_attention
from inflight.model.loading.reference_experts import ReferenceExperts
from inflight.model.loading.self_check import LONGEST, SelfCheck
from inflight.model.mixtures import changeable_choices, mixtures_of
from scripts.reference.tiny_models import save_model
from tests.engine.models import make_prompt

CONFIG = GptOssConfig(
    vocab_size=2048,
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    num_local_experts=16,
    num_experts_per_tok=4,
    sliding_window=16,
    max_position_embeddings=256,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
TOLERANCE = 0.1
PROMPT = make_prompt(60)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("mixture")
    save_model(CONFIG, folder)
    return load_model(EngineConfig(model=str(folder), dtype="bfloat16", device="cpu", enable_kernels=False))


def with_other_routers(model: LoadedModel, noise: float, run: Callable[[], Any]) -> Any:
    """Run something while random numbers of this deviation are added to the weights of all routers."""
    routers = [layer.mlp.router.weight for layer in model.module.model.layers]
    before = [router.detach().clone() for router in routers]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for router in routers:
            router += noise * torch.randn(router.shape, generator=generator)
        try:
            return run()
        finally:
            for router, weights in zip(routers, before, strict=True):
                router.copy_(weights)


def chosen(model: LoadedModel) -> list[torch.Tensor]:
    """Return the experts [T, k] that each mixture computes in a forward pass, in ascending order."""
    found: list[torch.Tensor] = []
    hooks = [
        mixture.register_forward_pre_hook(lambda _, given: found.append(given[1].sort().values))
        for mixture in mixtures_of(model.module)
    ]
    with torch.inference_mode(), attending_by(model.module, "eager"):
        model.module(torch.tensor([PROMPT]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Return the share of tokens and layers with other experts."""
    return float((torch.stack(first) != torch.stack(second)).any(-1).float().mean())


@pytest.mark.parametrize(("noise", "are_repeated"), [(0.001, True), (0.1, False)], ids=["ties", "another router"])
def test_only_almost_ties_are_repeated(noise: float, model: LoadedModel, *, are_repeated: bool) -> None:
    experts = ReferenceExperts(model.module, TOLERANCE)
    with experts.recorded():
        wanted = chosen(model)

    def repeated() -> list[torch.Tensor]:
        with experts.repeated(range(len(PROMPT))):
            return chosen(model)

    assert difference(with_other_routers(model, noise, lambda: chosen(model)), wanted) > 0.05
    left = difference(with_other_routers(model, noise, repeated), wanted)
    assert left == 0 if are_repeated else left > 0.5
    assert difference(with_other_routers(model, noise, lambda: chosen(model)), wanted) > 0.05, "a hook was left"


def test_rounding_of_routers_is_no_error_but_another_router_is(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings, _ = with_our_attention(model.module, model.module.config, LONGEST)
    check = SelfCheck(model.module, readings, model.max_model_len)
    layers, forward = model.layers, readings[0].forward(model.module, TORCH)
    monkeypatch.setattr(check, "_tolerance", 0.025)
    assert check.passes(forward, layers, TORCH)
    assert not with_other_routers(model, 0.1, lambda: check.passes(forward, layers, TORCH))
    monkeypatch.setattr(check, "_experts", ReferenceExperts(model.module, TOLERANCE))  # Nothing is recorded.
    assert not check.passes(forward, layers, TORCH), "nothing differs by rounding; the test is too easy"


@pytest.mark.usefixtures("cpu_kernels")
def test_a_graph_repeats_choices_until_they_are_fixed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    readings, _ = with_our_attention(model.module, model.module.config, LONGEST)
    check = SelfCheck(model.module, readings, model.max_model_len)
    with changeable_choices(model.module):
        graph = TracedForward(model.module, model.layers).fused()
    monkeypatch.setattr(check, "_tolerance", 0.025)
    assert check.passes(graph, model.layers, CPU_KERNELS)
    assert not check.passes(graph.with_fixed_choices(), model.layers, CPU_KERNELS)


@pytest.mark.usefixtures("cpu_kernels")
def test_choices_are_fixed_in_what_serves(tmp_path: Path) -> None:
    save_model(CONFIG, tmp_path)
    served = load_model(EngineConfig(model=str(tmp_path), dtype="bfloat16", device="cpu")).forward
    assert isinstance(served, TracedForward)
    assert served.is_fused
    assert "inflight_choice::chosen" not in {node.kind() for node in served._graph.nodes()}
