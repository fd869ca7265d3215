"""Adapters in `lora_folder`: read when they are asked for, replaced and removed while the engine runs."""

import copy
import dataclasses
import functools
import gc
import os
import shutil
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from inflight import Engine, EngineConfig, InvalidRequest, QueueFull, RequestOptions, SamplingParams
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.routed_forward import RoutedForward
from scripts.reference.random_adapter import RandomAdapter
from scripts.reference.tiny_models import SERVED, save_model
from scripts.reference.tiny_models import greedy as generate
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt

TOKENS = 8
PROMPT = make_prompt(20)


def of(number: int) -> RandomAdapter:
    """A different adapter for each number: of other layers and another rank."""
    layers = [("q_proj", "v_proj"), ("o_proj", "down_proj", "up_proj"), ("gate_proj", "k_proj")][number % 3]
    return RandomAdapter(rank=3 + number, alpha=16, seed=number, layers=layers, size=0.5)


def ask(engine: Engine, name: str, prompt: list[int] = PROMPT, **params: Any) -> list[int]:
    request_id = engine.submit(prompt, greedy(TOKENS, **params), RequestOptions(lora_name=name))
    return drain(engine)[request_id].token_ids


def merged(module: Any, number: int, prompt: list[int] = PROMPT) -> list[int]:
    with of(number).merged_into(module):
        return generate(module, prompt, TOKENS)


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    """Five adapters."""
    for number in range(5):
        of(number).save(tmp_path / f"a{number}", tiny.module)
    return tmp_path


@pytest.mark.parametrize("kind", ["llama", "phimoe", "gpt_neox", "deepseek_v3", "phi3"])
def test_adapters_are_read_when_they_are_asked_for(kind: str, tmp_path: Path) -> None:
    module = save_model(SERVED[kind].config, tmp_path / "model")
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    engine = make_engine(tmp_path / "model", lora_folder=str(adapters), max_loras=2)
    with pytest.raises(InvalidRequest, match="lora_name is 'a0', but lora_folder has no adapters"):
        ask(engine, "a0")
    slots = [each for name, each in engine.model.module.named_buffers() if "lora_" in name]
    assert slots
    assert not any(torch.count_nonzero(each) for each in slots)
    ends = {
        "gpt_neox": ("query_key_value", "dense_4h_to_h"),
        "phi3": ("qkv_proj", "o_proj", "down_proj"),
        "deepseek_v3": ("kv_a_proj_with_mqa", "o_proj"),
    }.get(kind, ("q_proj", "o_proj"))
    plain = generate(module, PROMPT, TOKENS)
    for number in (0, 1, 2, 0):
        adapter = RandomAdapter(rank=8, seed=number, layers=ends, size=1.0)
        adapter.save(adapters / f"a{number}", module)
        with adapter.merged_into(module):
            wanted = generate(module, PROMPT, TOKENS)
        assert wanted != plain
        assert ask(engine, f"a{number}") == wanted
        assert ask(engine, "") == plain


def test_requests_of_one_batch_have_named_adapters_and_those_of_the_folder(tiny: Tiny, folder: Path) -> None:
    named = {"a0": of(7).save(folder / "elsewhere", tiny.module), "fixed": of(8).save(folder / "fixed", tiny.module)}
    engine = make_engine(tiny.folder, lora_folder=str(folder), lora_modules=named, max_loras=5)
    assert engine.model.adapters is not None
    assert engine.model.adapters.names() == ["a0", "fixed", "a1", "a2", "a3", "a4", "elsewhere"]
    wanted = {"a0": 7, "fixed": 8, "a1": 1, "a2": 2, "a3": 3, "a4": 4, "elsewhere": 7}
    ids = {name: engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name=name)) for name in wanted}
    outputs = drain(engine)
    for name, number in wanted.items():
        assert outputs[ids[name]].token_ids == merged(tiny.module, number)


def test_the_least_recently_used_adapter_makes_room(tiny: Tiny, folder: Path) -> None:
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=2)
    assert engine.model.adapters is not None
    cache = engine.model.adapters.cache
    assert cache is not None
    for number, in_memory in ((0, {0}), (1, {0, 1}), (0, {0, 1}), (2, {0, 2}), (3, {2, 3}), (3, {2, 3})):
        assert ask(engine, f"a{number}") == merged(tiny.module, number)
        assert {each for each in range(5) if cache.has(f"a{each}")} == in_memory
    stats = engine.stats()
    assert (stats.lora_loads, stats.lora_adapters) == (4, 2)
    assert stats.lora_requests == {"a0": 2, "a1": 1, "a2": 1, "a3": 2}


def test_adapters_in_use_keep_their_place(tiny: Tiny, folder: Path) -> None:
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=2)
    running = [engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name=f"a{number}")) for number in (0, 1)]
    engine.step()
    with pytest.raises(QueueFull, match="lora_name is 'a2'; it cannot be read now, as unfinished requests use all of"):
        ask(engine, "a2")
    running.append(engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name="a1")))
    outputs = drain(engine)
    for name, number in zip(running, (0, 1, 1), strict=True):
        assert outputs[name].token_ids == merged(tiny.module, number)
    assert ask(engine, "a2") == merged(tiny.module, 2)


def test_cancelled_refused_and_searching_requests_give_their_place_back(tiny: Tiny, folder: Path) -> None:
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=1)
    for number, params in enumerate((greedy(TOKENS), SamplingParams(max_tokens=TOKENS, beam_width=2), greedy(TOKENS))):
        options = RequestOptions(lora_name=f"a{number}")
        cancelled = engine.submit(PROMPT, params, options)
        engine.step()
        engine.cancel(cancelled)
        engine.submit(PROMPT, params, options)
        with pytest.raises(InvalidRequest, match="max_tokens"):
            engine.submit(PROMPT, greedy(10**6), options)
        drain(engine)
    assert ask(engine, "a3") == merged(tiny.module, 3)


@pytest.mark.parametrize("params", [greedy(TOKENS), SamplingParams(max_tokens=TOKENS, beam_width=2)])
def test_ended_requests_give_their_place_back_whoever_still_refers_to_them(
    tiny: Tiny, folder: Path, params: SamplingParams
) -> None:
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=1)
    ended = []
    for number in range(3):
        engine.submit(PROMPT, params, RequestOptions(lora_name=f"a{number}"))
        ended += engine.core._unfinished.values()
        if number == 1:
            engine.cancel(ended[-1].request_id)
        drain(engine)
    assert len(ended) == 3


def test_requests_that_wait_for_an_adapter_are_counted(
    tiny: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.adapter_reads import AdapterReads

    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=1)
    submitted: list[int] = []
    stream: Any = SimpleNamespace(was_cancelled=False)
    reads = AdapterReads(engine, [stream], None)  # type: ignore[arg-type]
    for number in range(2):
        reads.add(stream, RequestOptions(lora_name=f"a{number}"), functools.partial(submitted.append, number))
    assert engine.stats().lora_waiting == 2
    reads.stop()
    reads.run()
    assert (submitted, engine.stats().lora_waiting) == ([0, 1], 0)


def test_a_refused_beam_search_gives_its_place_back_at_once(tiny: Tiny, folder: Path) -> None:
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=1, max_queue_size=1)
    engine.submit(PROMPT, greedy(TOKENS))
    gc.disable()
    try:
        with pytest.raises(QueueFull, match="max_queue_size"):
            engine.submit(PROMPT, SamplingParams(max_tokens=TOKENS, beam_width=2), RequestOptions(lora_name="a0"))
        drain(engine)
        assert ask(engine, "a1") == merged(tiny.module, 1)
    finally:
        gc.enable()


def test_replaced_files_are_read_and_removed_ones_are_gone(tiny: Tiny, folder: Path) -> None:
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=3)
    begun = engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name="a0"))
    engine.step()
    of(4).save(folder / "new", tiny.module)
    shutil.rmtree(folder / "a0")
    os.rename(folder / "new", folder / "a0")
    next_one = engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name="a0"))
    outputs = drain(engine)
    assert outputs[begun].token_ids == merged(tiny.module, 0)
    assert outputs[next_one].token_ids == merged(tiny.module, 4)
    shutil.rmtree(folder / "a0")
    with pytest.raises(InvalidRequest, match="lora_name is 'a0'; it must be one of a1, a2, a3, a4"):
        ask(engine, "a0")


@pytest.mark.parametrize("name", ["..", ".", "../a1", "a1/", "/a1", ".hidden", "a1\0", "a1/../a1", "nothing"])
def test_names_do_not_lead_out_of_the_folder(tiny: Tiny, folder: Path, name: str) -> None:
    inside = folder / "inside"
    inside.mkdir()
    for other in (inside / "a1", inside / ".hidden"):
        of(1).save(other, tiny.module)
    engine = make_engine(tiny.folder, lora_folder=str(inside))
    with pytest.raises(InvalidRequest, match=r"it must be one of a1$"):
        ask(engine, name)


def test_adapters_that_do_not_fit_are_refused_and_hurt_nobody(tiny: Tiny, folder: Path) -> None:
    dataclasses.replace(of(0), config={"use_dora": True}).save(folder / "dora", tiny.module)
    RandomAdapter(rank=17).save(folder / "high", tiny.module)
    (folder / "broken").mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / "broken" / file).write_bytes((folder / "a0" / file).read_bytes()[:-100])
    wide: PreTrainedConfig = copy.deepcopy(SERVED["llama"].config)
    wide.hidden_size *= 2
    of(0).save(folder / "wide", save_model(wide, folder / "wide-model"))
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=1)
    assert ask(engine, "a1") == merged(tiny.module, 1)
    for name, says in (
        ("dora", "lora_name is 'dora'; it uses use_dora, which is not supported"),
        ("high", "lora_name is 'high'; it has the rank 17 for .*; it must be at most 16, max_lora_rank"),
        ("broken", "lora_name is 'broken'; it cannot be read: "),
        ("wide", "lora_name is 'wide'; it has 128 inputs and .* outputs for "),
    ):
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=says) as raised:
                ask(engine, name)
            assert str(folder) not in str(raised.value)
    assert ask(engine, "a2") == merged(tiny.module, 2)


def test_a_folder_that_is_missing_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lora_folder is .*nothing'; it cannot be read: No such file or directory"):
        make_engine(tiny.folder, lora_folder=str(tmp_path / "nothing"))


def test_threads_that_ask_at_once_get_the_right_adapters(tiny: Tiny, folder: Path) -> None:
    engine = make_engine(tiny.folder, lora_folder=str(folder), max_loras=3)
    asked: dict[str, int] = {}

    def submit(seed: int) -> None:
        for turn in range(20):
            number = (seed + turn) % 5
            with suppress(QueueFull):
                asked[engine.submit(PROMPT, greedy(TOKENS), RequestOptions(lora_name=f"a{number}"))] = number

    threads = [threading.Thread(target=submit, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    found: dict[str, list[int]] = {}
    while any(thread.is_alive() for thread in threads) or engine.has_work:
        found.update({output.request_id: output.token_ids for output in engine.step() if output.finished})
    wanted = [merged(tiny.module, number) for number in range(5)]
    assert found == {name: wanted[number] for name, number in asked.items()}
    assert len(found) >= 20


# -- with the kernels for CPUs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(cpu_kernels: None, first_layers: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The first layers of the default model in bfloat16 with a folder for adapters, which is empty."""
    folder = tmp_path_factory.mktemp("adapters")
    return load_model(EngineConfig(model=str(first_layers), dtype="bfloat16", lora_folder=str(folder), max_loras=2))


def test_an_adapter_of_the_folder_changes_the_same_bits_as_a_named_one(
    loaded: LoadedModel, shallow: Engine, first_layers: Path
) -> None:
    assert loaded.adapters is not None
    assert loaded.adapters.cache is not None
    files = {
        name: RandomAdapter(rank, 16, seed, layers, size=0.1).save(
            loaded.adapters.cache.folder.files(name), shallow.model.module
        )
        for seed, (name, rank, layers) in enumerate(
            (("one", 16, ("q_proj", "down_proj")), ("two", 4, ("o_proj",)), ("three", 9, ("k_proj", "up_proj")))
        )
    }
    config = EngineConfig(model=str(first_layers), dtype="bfloat16", kv_cache_tokens=2048)
    folder = Engine(config, loaded)
    named = Engine(dataclasses.replace(config, lora_modules=files))
    params = greedy(TOKENS, ignore_eos=True, logprobs=1)
    for name in ("one", "two", "three", "one", ""):
        found = []
        for engine in (folder, named):
            request_id = engine.submit(PROMPT, params, RequestOptions(lora_name=name))
            logprobs = drain(engine)[request_id].logprobs
            assert logprobs is not None
            found.append([each.chosen for each in logprobs])
        assert found[0] == found[1]


def test_the_graph_has_room_for_adapters_of_all_layers(loaded: LoadedModel) -> None:
    forward = loaded.forward
    assert isinstance(forward, RoutedForward)
    assert isinstance(forward.special, TracedForward)
    kinds = Counter(node.kind() for node in forward.special._graph.nodes())
    assert kinds["inflight::add_lora"] == 7 * len(loaded.layers)
