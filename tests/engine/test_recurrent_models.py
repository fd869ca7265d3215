"""Models with recurrent states: what reuse, failures, settings and kernels do to them."""

import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from inflight import EngineConfig, RequestOutput, SamplingParams, UnsupportedModel
from inflight.model.cpu.kernels import load_kernels
from inflight.model.cpu.recurrent_steps import fast_steps, replace_steps
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.recurrent.state_pool import StatePool
from inflight.model.recurrent.time_steps import bound_steps, bounded_steps
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


@pytest.mark.parametrize(("heads", "key_heads", "keys", "values"), [(4, 2, 24, 16), (3, 3, 128, 128)])
@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize(("function", "length"), [("recurrent", 1), ("chunk", 1), ("chunk", 70)])
def test_the_gated_delta_rule(
    function: str, length: int, has_state: bool, heads: int, key_heads: int, keys: int, values: int
) -> None:
    def inputs() -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(0)
        query, key, value, g, beta = (
            torch.randn(shape, generator=generator)
            for shape in (
                (5, length, key_heads, keys),
                (5, length, key_heads, keys),
                (5, length, heads, values),
                (5, length, heads),
                (5, length, heads),
            )
        )
        return query, key, value, -g.abs(), beta.sigmoid()

    def state() -> torch.Tensor | None:
        shape = 5, heads, keys, values
        return torch.randn(shape, generator=torch.Generator().manual_seed(1)) if has_state else None

    others = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    rule = with_kernels("qwen3_5", f"torch_{function}_gated_delta_rule")
    with fast_steps():
        found = rule(*inputs(), initial_state=state(), **others)
    wanted = rule.slow(*inputs(), initial_state=state(), **others)
    assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize("limits", [(0.0, math.inf), (0.1, 1.5)])
@pytest.mark.parametrize(("heads", "groups", "width", "size"), [(4, 2, 24, 16), (3, 1, 66, 128)])
def test_a_prompt_of_mamba_2(
    heads: int, groups: int, width: int, size: int, limits: tuple[float, float], length: int, *, has_state: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dt, b, c, state, a, d, bias = (
        torch.randn(shape, generator=generator)
        for shape in (
            (2, length, heads, width),
            (2, length, heads),
            (2, length, groups, size),
            (2, length, groups, size),
            (2, heads, width, size),
            *[(heads,)] * 3,
        )
    )
    scan = with_kernels("granitemoehybrid", "mamba2_chunk_scan")
    others = {"D": d, "dt_bias": bias, "dt_softplus": True, "dt_limit": limits, "return_final_states": True}
    wanted = scan.slow(x, dt, -a.exp(), b, c, 64, initial_states=state.clone() if has_state else None, **others)
    with fast_steps():
        found = scan(x, dt, -a.exp(), b, c, 64, initial_states=state if has_state else None, **others)
    assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-4)
    assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-4)
    assert found[1] is state or not has_state, "the kernel does not serve this"


@pytest.mark.parametrize(("heads", "groups", "width", "size"), [(4, 2, 24, 16), (3, 1, 66, 128)])
def test_step_of_mamba_2(heads: int, groups: int, width: int, size: int) -> None:
    def inputs() -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(0)
        state, x, dt, a, b, c, d, bias = (
            torch.randn(shape, generator=generator)
            for shape in (
                (5, heads, width, size),
                (5, heads, width),
                (5, heads, 1),
                (heads, 1, 1),
                (5, groups, size),
                (5, groups, size),
                (heads, 1),
                (heads, 1),
            )
        )
        dt, bias = dt.expand(-1, -1, width), bias.expand(-1, width)
        return state, x, dt, -a.exp().expand(-1, width, size), b, c, d.expand(-1, width), bias

    states = []

    def kept() -> tuple[Any, ...]:
        arguments = inputs()
        states.append(arguments[0])
        return arguments

    found, wanted = both("granitemoehybrid", "mamba2_selective_state_update", kept)
    assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert_close(*states, rtol=1e-5, atol=1e-5)


def test_bounded_time_steps_of_mamba_2() -> None:
    step = with_kernels("nemotron_h", "mamba2_selective_state_update", [bound_steps])
    generator = torch.Generator().manual_seed(0)

    def after(dt: torch.Tensor, **others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        state, x, b, c = (torch.ones(size) for size in ((5, 4, 24, 16), (5, 4, 24), (5, 2, 16), (5, 2, 16)))
        a = torch.full((4, 1, 1), -1.0).expand(-1, 24, 16)
        output = step(state, x, dt.expand(-1, -1, 24), a, b, c, **others)
        return output, state

    raw, bias = torch.randn(5, 4, 1, generator=generator), torch.ones(4, 1)
    with fast_steps(), bounded_steps((1.0, 1.5)):
        found = after(raw, dt_bias=bias.expand(-1, 24), dt_softplus=True)
    assert_close(found, after(torch.nn.functional.softplus(raw + bias).clamp(1.0, 1.5)), rtol=1e-5, atol=1e-5)


def with_kernels(model: str, function: str, others: Sequence[Callable[..., None]] = ()) -> Any:
    """A function of transformers' code that calls our kernel in `fast_steps`, after `others` have replaced it, too."""
    if not load_kernels():
        pytest.skip("this processor has no kernels")
    code = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    classes = [each for each in vars(code).values() if isinstance(each, type) and issubclass(each, torch.nn.Module)]
    module = next(each for each in classes if each.__module__ == code.__name__)
    for replace in (*others, replace_steps):
        replace([module.__new__(module)])
    return getattr(code, function)


def both(model: str, function: str, inputs: Any) -> tuple[Any, Any]:
    """What a function returns with our kernel, and what transformers' own code does."""
    step = with_kernels(model, function)
    with fast_steps():
        found = step(*inputs(), dt_softplus=True)
    return found, step.slow(*inputs(), dt_softplus=True)
