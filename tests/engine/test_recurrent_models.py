"""Models with recurrent states: what reuse, failures, settings and kernels do to them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from inflight import EngineConfig, RequestOutput, SamplingParams, UnsupportedModel
from inflight.model.cpu.kernels import load_kernels
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.recurrent.state_pool import StatePool
from scripts.reference.tiny_models import RECURRENT, SERVED, save_model
from tests.engine.models import cached_in_turns, drain, engine_of, greedy, make_engine, make_prompt, tokens

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]
CHAT = make_prompt(30)


@pytest.fixture(scope="module", params=["qwen3_5", "jamba"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoadedModel]:
    folder = tmp_path_factory.mktemp(request.param)
    save_model(RECURRENT[request.param].config, folder)
    return folder, load_model(EngineConfig(model=str(folder), dtype="float32"))


def chosen(output: RequestOutput) -> list[float]:
    assert output.prompt_logprobs is not None
    return [each.chosen for each in output.prompt_logprobs if each is not None]


def test_turns_of_a_chat_reuse_states_and_stay_the_same(loaded: tuple[Path, LoadedModel]) -> None:
    cached = cached_in_turns(engine_of(loaded), engine_of(loaded, enable_prefix_caching=False), CHAT)
    # Up to the last full block of what was computed: 30 + 12 - 1 tokens, and so on.
    assert cached == [0, 40, 56]


def test_samples_of_a_prompt_compute_it_once(loaded: tuple[Path, LoadedModel]) -> None:
    engine = engine_of(loaded)
    engine.generate([CHAT] * 4, greedy(2))
    assert engine.stats().hits["device"] == 3 * 24


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose time steps are bounded in prompts, but not in output."""
    folder = tmp_path_factory.mktemp("nemotron_h")
    save_model(RECURRENT["nemotron_h"].config, folder)
    return folder


def test_time_steps_of_a_prompt_do_not_depend_on_its_chunks(bounded: Path) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    whole, one_by_one = (make_engine(bounded, max_num_batched_tokens=budget, max_num_seqs=1) for budget in (64, 1))
    wanted, found = (chosen(engine.generate([CHAT], params)[0]) for engine in (whole, one_by_one))
    assert found == pytest.approx(wanted, abs=1e-4)


def test_a_chat_reuses_no_output_whose_time_steps_had_no_bounds(bounded: Path) -> None:
    engine, calm = make_engine(bounded), make_engine(bounded, enable_prefix_caching=False)
    answer = engine.generate([CHAT], greedy(12, ignore_eos=True))[0].token_ids
    prompt = [*CHAT, *answer, *make_prompt(5)]
    found, wanted = engine.generate([prompt], greedy(12)), calm.generate([prompt], greedy(12))
    assert tokens(found) == tokens(wanted)
    assert found[0].num_cached_tokens == 24


def test_a_step_without_memory_begins_the_states_anew(loaded: tuple[Path, LoadedModel]) -> None:
    wanted = tokens(engine_of(loaded).generate(PROMPTS, greedy(12)))
    engine, failed = engine_of(loaded), []

    def check(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if (count := arguments[0].shape[1]) > 30:
            failed.append(count)
            raise torch.OutOfMemoryError(f"tried to allocate for {count} tokens")

    # The states of the layers before it have been written.
    hook = loaded[1].module.model.layers[2].register_forward_pre_hook(check)
    try:
        assert tokens(engine.generate(PROMPTS, greedy(12))) == wanted
    finally:
        hook.remove()
    assert failed == [99, 49]
    assert engine.stats().blocks_used == 0


def test_engines_of_one_model_do_not_share_states(loaded: tuple[Path, LoadedModel]) -> None:
    engine, other = engine_of(loaded), engine_of(loaded)
    wanted = tokens(engine.generate([CHAT], greedy(12)))
    engine.submit(CHAT, greedy(12), request_id="again")
    other.submit(PROMPTS[0], greedy(30))
    found = {}
    while engine.has_work:
        found |= {output.request_id: output.token_ids for output in engine.step()}
        other.step()
    assert [found["again"]] == wanted


def test_after_an_interrupt_other_requests_begin_their_states_anew(loaded: tuple[Path, LoadedModel]) -> None:
    engine = engine_of(loaded)
    wanted = tokens(engine_of(loaded).generate([CHAT], greedy(12)))

    def interrupt(*_: object) -> None:
        handle.remove()
        raise KeyboardInterrupt

    engine.submit(CHAT, greedy(12), request_id="earlier")
    for _ in range(4):
        engine.step()
    handle = engine.model.states[-1].module.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, greedy(4))
    assert [drain(engine)["earlier"].token_ids] == wanted


def test_states_do_not_advance_twice_after_an_interrupt_behind_the_model(
    loaded: tuple[Path, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(loaded)
    wanted = tokens(engine_of(loaded).generate([CHAT], greedy(12)))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    engine.submit(CHAT, greedy(12), request_id="earlier")
    for _ in range(4):
        engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine._scheduler, "observe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert [drain(engine)["earlier"].token_ids] == wanted


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("no memory"), RuntimeError("broken")])
def test_beams_whose_states_were_not_copied_in_a_failed_step_begin_again(
    loaded: tuple[Path, LoadedModel], fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where prompts are not cut, a step may hold a prompt alone, and the copies of states of the next beams."""
    copy, fails = StatePool.copy, []

    def copy_or_fail(pool: StatePool, pairs: Sequence[tuple[int, int]]) -> None:
        if fails:
            raise fails.pop()
        copy(pool, pairs)

    monkeypatch.setattr(StatePool, "copy", copy_or_fail)
    settings = {"block_size": 1, "enable_prefix_caching": False, "enable_chunked_prefill": False}
    params = SamplingParams(max_tokens=12, beam_width=3, ignore_eos=True)
    wanted = engine_of(loaded, **settings).generate([make_prompt(5)], params)[0].token_ids
    preemptions = 0
    for steps in range(2, 12):
        engine = engine_of(loaded, **settings)
        beams = engine.submit(make_prompt(5), params)
        for _ in range(steps):
            engine.step()
        engine.submit(make_prompt(7), greedy(2))
        fails.append(fault)
        assert drain(engine)[beams].token_ids == wanted
        fails.clear()
        preemptions += engine.stats().preemptions
    assert preemptions > 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("speculative_config", {"method": "ngram"}),
        ("swap_space_tokens", 64),
        ("kv_transfer_config", {"kv_role": "kv_producer"}),
        ("tensor_parallel_size", 2),
    ],
)
def test_settings_for_keys_and_values_are_refused(
    loaded: tuple[Path, LoadedModel], setting: str, value: object
) -> None:
    with pytest.raises(UnsupportedModel, match=f"has recurrent states, which do not work with {setting}"):
        make_engine(loaded[0], **{setting: value})


def test_too_little_memory_for_the_states_is_told_with_the_setting(loaded: tuple[Path, LoadedModel]) -> None:
    with pytest.raises(ValueError, match=r"max_num_seqs is 1000000000; the recurrent states then take \d+ bytes"):
        engine_of(loaded, max_num_seqs=10**9)


def test_a_model_with_states_cannot_draft(loaded: tuple[Path, LoadedModel], tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    config = {"method": "draft_model", "model": str(loaded[0]), "num_speculative_tokens": 2}
    with pytest.raises(UnsupportedModel, match="has recurrent states, so it cannot draft"):
        make_engine(tmp_path, speculative_config=config)


@pytest.mark.parametrize("name", RECURRENT)
def test_bfloat16_uses_the_kernels(name: str, tmp_path: Path) -> None:
    if not load_kernels():
        pytest.skip("this processor has no kernels")
    save_model(RECURRENT[name].config, tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", max_model_len=256, block_size=16)
    assert engine.model.backend.name == "cpu kernels"
    assert len(engine.generate([CHAT], greedy(8, ignore_eos=True))[0].token_ids) == 8
