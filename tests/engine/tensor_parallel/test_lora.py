"""LoRA adapters on a divided model: each request gets the tokens of the model with its adapter merged into the weights.

The adapter `fixed` is in `lora_modules`, which each rank reads. The others are in `lora_folder`: rank 0 reads them.
"""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inflight import Engine, EngineConfig, InvalidRequest, RequestOptions
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.lora import load_adapters
from inflight.model.lora.adapter_weights import read_named_adapter
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.protocol import ADAPTER
from inflight.model.parallel.workers import Workers
from inflight.model.routed_forward import RoutedForward
from scripts.reference.random_adapter import LLAMA_LAYERS, RandomAdapter
from scripts.reference.tiny_models import SERVED, save_model
from scripts.reference.tiny_models import greedy as generate
from tests.engine.models import Tiny, drain, greedy, make_prompt

TOKENS = 16
PROMPTS = [make_prompt(length) for length in (5, 20, 37)]
PROMPT = PROMPTS[1]
FUSED = ("qkv_proj", "gate_up_proj", "o_proj", "down_proj")


def of(number: int, layers: Sequence[str] = LLAMA_LAYERS) -> RandomAdapter:
    """A different adapter for each number: of another rank, and of fewer layers every other time."""
    return RandomAdapter(rank=3 + number, seed=number, layers=layers[: 4 if number % 2 else None], size=0.5)


def config_of(model: Path, folder: Path, fixed: str, **settings: Any) -> EngineConfig:
    defaults = {"dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024, "max_num_batched_tokens": 16}
    return EngineConfig(
        model=str(model),
        tensor_parallel_size=2,
        device="cpu",
        lora_modules={"fixed": fixed},
        lora_folder=str(folder),
        max_loras=2,
        **{**defaults, **settings},
    )


def ask(engine: Engine, name: str, prompt: list[int] = PROMPT) -> list[int]:
    request_id = engine.submit(prompt, greedy(TOKENS), RequestOptions(lora_name=name))
    return drain(engine)[request_id].token_ids


def merged(module: Any, adapter: RandomAdapter, prompt: list[int] = PROMPT) -> list[int]:
    with adapter.merged_into(module):
        return generate(module, prompt, TOKENS)


def check_batch(engine: Engine, module: Any, adapters: dict[str, RandomAdapter]) -> None:
    """Requests with each of the adapters, and without one, run together."""
    asked = [(prompt, name) for prompt in PROMPTS for name in ("", *adapters)]
    ids = [engine.submit(prompt, greedy(TOKENS), RequestOptions(lora_name=name)) for prompt, name in asked]
    outputs = drain(engine)
    for request_id, (prompt, name) in zip(ids, asked, strict=True):
        wanted = merged(module, adapters[name], prompt) if name else generate(module, prompt, TOKENS)
        assert outputs[request_id].token_ids == wanted


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    """Five adapters."""
    for number in range(5):
        of(number).save(tmp_path / "adapters" / f"a{number}", tiny.module)
    return tmp_path / "adapters"


@pytest.fixture
def divided(tiny: Tiny, folder: Path, one_worker: Workers) -> DividedModel:
    return DividedModel(config_of(tiny.folder, folder, of(7).save(folder.parent / "fixed", tiny.module)), one_worker)


@pytest.fixture
def engine(tiny: Tiny, folder: Path, divided: DividedModel) -> Engine:
    return Engine(config_of(tiny.folder, folder, str(folder.parent / "fixed")), divided)


def test_each_request_of_a_batch_has_its_own_adapter(tiny: Tiny, engine: Engine, divided: DividedModel) -> None:
    adapters = {"fixed": of(7), "a0": of(0), "a1": of(1)}
    check_batch(engine, tiny.module, adapters)
    for settings in (
        {"kv_cache_tokens": 96, "preemption_mode": "recompute"},
        {"kv_cache_tokens": 96, "preemption_mode": "swap", "swap_space_tokens": 320},
        {"speculative_config": {"method": "ngram", "adaptive": False}},
    ):
        crowded = Engine(dataclasses.replace(engine.config, **settings), divided)
        check_batch(crowded, tiny.module, adapters)
        assert crowded.stats().preemptions > 0 or "kv_cache_tokens" not in settings


@pytest.mark.parametrize(
    ("kind", "heads", "layers"),
    [("qwen2", {"num_key_value_heads": 1}, LLAMA_LAYERS), ("phi3", {}, FUSED)],
    ids=["both ranks have the only KV head", "the plan gathers outputs and splits inputs"],
)
def test_layers_may_be_divided_in_other_ways(
    kind: str, heads: dict[str, int], layers: Sequence[str], tmp_path: Path, one_worker: Workers
) -> None:
    config = SERVED[kind].config
    module = save_model(type(config)(**{**config.to_diff_dict(), **heads}), tmp_path / "model")
    adapters = {name: of(number, layers) for number, name in enumerate(("fixed", "a1", "a2"))}
    fixed, *_ = (adapter.save(tmp_path / "adapters" / name, module) for name, adapter in adapters.items())
    settings = config_of(tmp_path / "model", tmp_path / "adapters", fixed)
    check_batch(Engine(settings, DividedModel(settings, one_worker)), module, adapters)


def test_adapters_come_and_go(tiny: Tiny, engine: Engine, folder: Path) -> None:
    old = engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name="a0"))
    engine.step()
    shutil.rmtree(folder / "a0")
    of(5).save(folder / "a0", tiny.module)
    new = engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name="a0"))
    outputs = drain(engine)
    assert outputs[old].token_ids == merged(tiny.module, of(0))
    assert outputs[new].token_ids == merged(tiny.module, of(5))
    for number, name in ((1, "a1"), (2, "a2"), (3, "a3"), (1, "a1"), (7, "fixed")):
        assert ask(engine, name) == merged(tiny.module, of(number))
    assert engine.stats().lora_loads == 6


def test_adapters_that_do_not_fit_are_refused_as_by_one_process(tiny: Tiny, engine: Engine, folder: Path) -> None:
    RandomAdapter(rank=17).save(folder / "high", tiny.module)
    with pytest.raises(InvalidRequest, match=r"lora_name is 'high'; it has the rank 17 for .*; it must be at most 16"):
        ask(engine, "high")
    config = SERVED["llama"].config
    narrow = type(config)(**{**config.to_diff_dict(), "intermediate_size": config.intermediate_size // 2})
    of(0).save(folder / "narrow", save_model(narrow, folder.parent / "narrow"))
    with pytest.raises(InvalidRequest, match=r"for model\.layers\.0\.mlp\.down_proj; the model's layer has 96 and 64"):
        ask(engine, "narrow")


def test_adapters_whose_files_differ_between_the_ranks_are_refused(
    tiny: Tiny, folder: Path, one_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        load_adapters, "read_named_adapter", lambda name, _: read_named_adapter(name, str(folder / "a0"))
    )
    with pytest.raises(ValueError, match=r"lora_modules\['fixed'\] is .*; its files are not the same on all machines"):
        DividedModel(config_of(tiny.folder, folder, str(folder / "a1")), one_worker)


def test_a_rank_that_fails_while_it_takes_an_adapter_spoils_no_other_request(
    tiny: Tiny, engine: Engine, folder: Path, one_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = one_worker.tell

    def tell_of_a_slot_that_is_not_there(command: bytes, argument: bytes) -> None:
        tell(command, b"\x63" + argument[1:] if command == ADAPTER else argument)

    assert ask(engine, "a0") == merged(tiny.module, of(0))
    running = engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name="a0"))
    engine.step()
    with monkeypatch.context() as patched:
        patched.setattr(one_worker, "tell", tell_of_a_slot_that_is_not_there)
        with pytest.raises(RuntimeError, match="rank 1: IndexError"):
            ask(engine, "a1")
    assert drain(engine)[running].token_ids == merged(tiny.module, of(0))
    for number in (1, 2, 0):
        assert ask(engine, f"a{number}") == merged(tiny.module, of(number))


def test_a_failure_of_this_rank_while_it_sends_an_adapter_leaves_no_other_in_a_collective(
    tiny: Tiny, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.model.adapters is not None
    layers = engine.model.adapters.layers
    put, failing = layers.put_layer, layers.names[9]

    def fail(name: str, *others: Any) -> None:
        if name == failing:
            raise RuntimeError("broken")
        put(name, *others)

    # As many slots as there are: one that has failed is free again.
    for number in (0, 1, 2):
        with monkeypatch.context() as patched:
            patched.setattr(layers, "put_layer", fail)
            with pytest.raises(RuntimeError, match="broken"):
                ask(engine, f"a{number}")
        assert ask(engine, f"a{number}") == merged(tiny.module, of(number))


def test_the_kernels_give_a_row_the_same_logits_whoever_is_in_its_batch(
    tiny: Tiny, folder: Path, one_worker: Workers, cpu_kernels: None
) -> None:
    fixed = of(7).save(folder.parent / "fixed", tiny.module)
    config = config_of(tiny.folder, folder, fixed, dtype="bfloat16", block_size=16)
    engine = Engine(config, DividedModel(config, one_worker))
    assert isinstance(engine.model.forward, RoutedForward)
    assert isinstance(engine.model.forward.special, TracedForward)
    params = greedy(TOKENS, ignore_eos=True, logprobs=0)

    def logprobs(*asked: tuple[list[int], str]) -> list[list[float]]:
        ids = [engine.submit(prompt, params, RequestOptions(lora_name=name)) for prompt, name in asked]
        outputs = drain(engine)
        return [[each.chosen for each in outputs[request_id].logprobs] for request_id in ids]

    asked = [(prompt, name) for prompt in PROMPTS[1:] for name in ("", "fixed", "a0", "a1")]
    together = logprobs(*asked)
    assert together == [logprobs(each)[0] for each in asked]
    assert len({tuple(each) for each in together}) == len(asked)
