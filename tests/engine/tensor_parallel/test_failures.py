"""A rank that ends, stands still or fails: no request waits for ever, and nothing is left behind."""

import os
import resource
import signal
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
import transformers as t

from inflight import Engine, EngineConfig, EngineDead, SamplingParams, UnsupportedModel
from inflight.model.loading.checkpoint import Checkpoint
from inflight.model.parallel import rank_process, shards
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.plan import check_plan
from inflight.model.parallel.rendezvous import Rendezvous
from inflight.model.parallel.workers import LOOPBACK, Workers
from inflight.outputs import TokenEvent
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt, tokens
from tests.engine.tensor_parallel.random_requests import SETTINGS, fail_now_and_then, serve

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]
# Less than a collective waits: the watch finds what has happened, not a collective.
JOIN_SECONDS = 30.0


def config_of(folder: Path, **settings: Any) -> EngineConfig:
    defaults = {"dtype": "float32", "device": "cpu", "block_size": 8, "kv_cache_tokens": 1024}
    return EngineConfig(model=str(folder), tensor_parallel_size=2, **{**defaults, **settings})


@pytest.fixture
def divided(tiny: Tiny, one_worker: Workers) -> DividedModel:
    return DividedModel(config_of(tiny.folder), one_worker)


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.slow)],
)
def test_every_request_ends_within_seconds_when_a_rank_does_no_more(tiny: Tiny, number: signal.Signals) -> None:
    others = set(psutil.Process().children())
    engine = Engine(config_of(tiny.folder))
    (rank,) = set(psutil.Process().children()) - others
    assert engine._workers is not None
    folder = engine._workers.folder
    ended: dict[str, TokenEvent] = {}
    running, all_ended = threading.Event(), threading.Event()

    def sink(events: list[TokenEvent]) -> None:
        running.set()
        ended.update({event.request.request_id: event for event in events if event.finish_reason})
        if len(ended) == len(PROMPTS):
            all_ended.set()

    def run() -> None:
        with pytest.raises(EngineDead, match="rank 1"):
            engine.core.run(sink)

    thread = threading.Thread(target=run)
    thread.start()
    for prompt in PROMPTS:
        engine.submit(prompt, greedy(200, ignore_eos=True))
    assert running.wait(JOIN_SECONDS)
    rank.send_signal(number)
    assert all_ended.wait(JOIN_SECONDS)
    thread.join(JOIN_SECONDS)
    assert {event.finish_reason for event in ended.values()} == {"error"}
    assert all("rank 1" in (event.error or "") for event in ended.values())
    with pytest.raises(EngineDead, match="rank 1"):
        engine.submit(PROMPTS[0], greedy(1))
    engine.close()
    assert not rank.is_running()
    assert not folder.exists()
    # Other tests may run at the same time. Shared memory of torch has the process's id in its name.
    assert not [name for name in os.listdir("/dev/shm") if str(rank.pid) in name]


def test_a_rank_that_cannot_be_started_leaves_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = rank_process.start

    def fail_at_two(rank: int, *others: Any) -> Any:
        if rank == 2:
            raise BlockingIOError("no process is left")
        return start(rank, *others)

    monkeypatch.setattr(rank_process, "start", fail_at_two)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(psutil.Process().children()), set(os.listdir("/proc/self/fd"))
    with pytest.raises(BlockingIOError):
        Workers(3)
    assert list(tmp_path.iterdir()) == []
    assert (set(psutil.Process().children()), set(os.listdir("/proc/self/fd"))) == before


# A rank whose weights cannot be fetched.
BROKEN_RANK = """
import os
from inflight.model.loading.checkpoint import Checkpoint
from inflight.model.parallel.worker import main

def fetch_weights(self):
    {fault}

Checkpoint.fetch_weights = fetch_weights
main()
"""


def load_in_time(tiny: Tiny, workers: Workers) -> DividedModel:
    """Load a model. On a thread of its own, so that a load that hangs fails the test instead."""
    loaded: Future[DividedModel] = Future()

    def load() -> None:
        try:
            loaded.set_result(DividedModel(config_of(tiny.folder), workers))
        except Exception as error:  # noqa: BLE001 - `result` raises it
            loaded.set_exception(error)

    threading.Thread(target=load, daemon=True).start()
    return loaded.result(JOIN_SECONDS)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("os.kill(os.getpid(), 9)", EngineDead, "rank 1 has ended with the status -9"),
        ("raise OSError('the disk is full')", RuntimeError, "rank 1: ValueError: .* the disk is full"),
    ],
    ids=["dies", "fails"],
)
def test_a_rank_that_fails_before_it_reads_its_weights_ends_the_load(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, fault: str, error: type[Exception], message: str
) -> None:
    popen = subprocess.Popen

    def start_broken(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        place = command.index("-m")
        return popen([*command[:place], "-c", BROKEN_RANK.format(fault=fault), *command[place + 2 :]], **options)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", start_broken)
        workers = Workers(2)
    with pytest.raises(error, match=message):
        load_in_time(tiny, workers)
    workers.close()


def test_a_rank_that_ends_before_it_connects_ends_the_load_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said that it comes, so that the others begin to connect, and then it never does."""
    monkeypatch.setattr(shards, "_MEETING", timedelta(seconds=1))
    rendezvous = Rendezvous("store", folder=tmp_path)
    mine, other = (shards.Shards(rank, 2, torch.device("cpu"), rendezvous, LOOPBACK) for rank in range(2))
    arrival = threading.Thread(target=other._wait_for_arrivals)
    arrival.start()
    before = dict(os.environ)
    with pytest.raises(shards.RankLeft), mine.loading():
        pass
    arrival.join()
    assert dict(os.environ) == before
    assert not dist.is_initialized()


def test_if_rank_0_fails_before_it_reads_its_weights_the_others_serve_on(
    tiny: Tiny, one_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Checkpoint) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "fetch_weights", fail)
        with pytest.raises(ValueError, match="the disk is full"):
            load_in_time(tiny, one_worker)
    engine = Engine(config_of(tiny.folder), DividedModel(config_of(tiny.folder), one_worker))
    assert len(engine.generate([PROMPTS[0]], SamplingParams(max_tokens=2))[0].token_ids) == 2


def test_the_death_of_a_rank_between_steps_is_told() -> None:
    workers = Workers(2)
    death: Future[EngineDead] = Future()
    workers.serve(death.set_result)
    os.kill(workers.pids[0], signal.SIGKILL)
    assert str(death.result(JOIN_SECONDS)) == "rank 1 has ended with the status -9"
    with pytest.raises(EngineDead, match="rank 1 has ended with the status -9"):
        workers.answers(JOIN_SECONDS)
    workers.close()
    assert not workers.folder.exists()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("broken")])
def test_a_failure_of_this_rank_between_collectives_stops_no_other(
    tiny: Tiny, divided: DividedModel, error: Exception
) -> None:
    engine = Engine(config_of(tiny.folder), divided)

    def fail(*_: object) -> None:
        handle.remove()
        raise error

    handle = engine.model.module.model.layers[1].register_forward_pre_hook(fail)
    engine.submit(PROMPTS[0], greedy(8), request_id="a")
    outputs = drain(engine)
    if isinstance(error, torch.OutOfMemoryError):
        assert outputs["a"].token_ids == tiny.engine().generate([PROMPTS[0]], greedy(8))[0].token_ids
    else:
        assert outputs["a"].error == "RuntimeError: broken"
    assert tokens(engine.generate(PROMPTS, greedy(8))) == tokens(tiny.engine().generate(PROMPTS, greedy(8)))


def test_memory_that_another_rank_lacks_halves_the_step(tmp_path: Path, one_worker: Workers) -> None:
    config = t.LlamaConfig(
        **{**SERVED["llama"].config.to_diff_dict(), "intermediate_size": 32768, "max_position_embeddings": 2048}
    )
    save_model(config, tmp_path)
    settings = config_of(tmp_path, max_num_batched_tokens=2048, kv_cache_tokens=4096)
    engine = Engine(settings, DividedModel(settings, one_worker))
    prompts = [make_prompt(1500)]
    engine.generate([make_prompt(5)], greedy(2))
    (rank,) = one_worker.pids
    # A step of 1,500 tokens takes 100 MB for each result of a layer. Up to 64 MB may be free within the heap.
    room = psutil.Process(rank).memory_info().vms + (100 << 20)
    resource.prlimit(rank, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    got = tokens(engine.generate(prompts, greedy(4)))
    resource.prlimit(rank, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert got == tokens(
        make_engine(tmp_path, max_num_batched_tokens=2048, kv_cache_tokens=4096).generate(prompts, greedy(4))
    )
    stats = engine.stats()
    assert stats.budget_tokens < stats.steps * 2048


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("broken")])
def test_random_requests_all_end(tiny: Tiny, divided: DividedModel, error: Exception) -> None:
    engine = Engine(config_of(tiny.folder, **SETTINGS), divided)
    failures = fail_now_and_then(engine.model.module.model.layers[1], error, 0.03)
    reasons = serve(engine, 200)
    assert failures
    assert sum(reasons.values()) == 200
    assert reasons["cancelled"] > 0
    assert set(reasons) <= {"length", "stop", "cancelled", "OutOfMemory: rank 0: no room", "RuntimeError: broken"}


@pytest.mark.parametrize(
    ("name", "heads", "reason"),
    [
        (
            "llama",
            {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8},
            "llama has 9 attention heads and 3 KV heads; tensor_parallel_size is 2; it must divide",
        ),
        ("gpt2", {}, "gpt2 has no plan for tensor parallel in transformers; tensor_parallel_size is 2"),
        (
            "gpt_oss",
            {"intermediate_size": 95},
            "gpt_oss has experts of the width 95; tensor_parallel_size is 2; it must",
        ),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(
    name: str, heads: dict[str, int], reason: str, tmp_path: Path, one_worker: Workers
) -> None:
    config = SERVED[name].config
    save_model(type(config)(**{**config.to_diff_dict(), **heads}), tmp_path)
    with pytest.raises(UnsupportedModel, match=reason):
        DividedModel(config_of(tmp_path), one_worker)


def test_no_rank_is_started_for_a_model_that_cannot_be_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(SERVED["gpt2"].config, tmp_path)
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **_: started.append(args))
    with pytest.raises(UnsupportedModel, match="gpt2 has no plan for tensor parallel"):
        Engine(config_of(tmp_path))
    assert not started


def test_a_style_that_is_not_served_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t.LlamaConfig, "base_model_tp_plan", {"layers.*.mlp": "sequence_parallel"})
    with pytest.raises(
        UnsupportedModel, match=r"plan of llama has the style 'sequence_parallel' for model.layers.\*.mlp"
    ):
        check_plan(SERVED["llama"].config, 2, trust_remote_code=False)


def test_checkpoints_whose_weights_cannot_be_divided_while_they_are_read_are_refused() -> None:
    """transformers would give each rank other rows of the experts than their plan says."""
    layers = {"num_hidden_layers": 1, "mlp_layer_types": ["sparse"], "sliding_window": 8}
    text = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, **layers}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(UnsupportedModel, match=r"experts.gate_up_proj in another way than the model has it \(Concat"):
        check_plan(t.Step3p7Config(text_config=text, vision_config=vision), 2, trust_remote_code=False)


def test_a_folder_that_is_missing_is_named_and_the_ranks_serve_on(
    tiny: Tiny, one_worker: Workers, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="has no config"):
        DividedModel(config_of(tmp_path / "nothing"), one_worker)
    engine = Engine(config_of(tiny.folder), DividedModel(config_of(tiny.folder), one_worker))
    assert len(engine.generate([PROMPTS[0]], SamplingParams(max_tokens=2))[0].token_ids) == 2


def test_ranks_do_not_let_small_pieces_divide_their_memory(one_worker: Workers) -> None:
    (pid,) = one_worker.pids
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (tunables,) = (entry for entry in environment if entry.startswith(b"GLIBC_TUNABLES="))
    assert b"glibc.malloc.tcache_count=0" in tunables
