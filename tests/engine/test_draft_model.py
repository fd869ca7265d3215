"""A smaller model that drafts: it changes no output, leaves nothing behind, and may fail."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from inflight import Engine, RequestOptions, SamplingParams
from inflight.errors import InvalidRequest, OutOfMemory, UnsupportedModel
from inflight.scheduler.plan import StepPlan
from inflight.speculation.model_drafter import ModelDrafter
from scripts.launch.default_model import default_model
from scripts.reference.tiny_models import OWN_ATTENTION, SERVED, VOCABULARY, save_model
from tests.engine.models import Tiny, alone, drain, greedy, make_engine, make_prompt, tokens
from tests.engine.test_speculation import any_params
from tests.unit.tiny_tokenizers import byte_level


@pytest.fixture(scope="module")
def nearly(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that often says what `tiny` says: the same weights with some noise."""
    folder = tmp_path_factory.mktemp("nearly")
    module = save_model(SERVED["llama"].config, folder)
    module.load_state_dict(tiny.module.state_dict())
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in module.parameters():
            weights.add_(0.01 * weights.std() * torch.randn_like(weights) if weights.dim() > 1 else 0)
    module.save_pretrained(folder)
    return folder


def drafting(plain: Engine, draft: Path, *, adaptive: bool = False, num: int = 4, **others: Any) -> Engine:
    config = {"method": "draft_model", "model": str(draft), "adaptive": adaptive, "num_speculative_tokens": num}
    return Engine(replace(plain.config, speculative_config=config, **others), plain.model)


def drafter_of(engine: Engine) -> ModelDrafter:
    drafter = engine._scheduler._speculator._drafter  # type: ignore[attr-defined]
    assert isinstance(drafter, ModelDrafter)
    return drafter


def assert_nothing_is_left(engine: Engine) -> None:
    drafter = drafter_of(engine)
    assert (engine.stats().blocks_used, drafter._tables.pool.num_used, drafter._tables.num_promised) == (0, 0, 0)
    assert not drafter._sequences


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    prompts = [make_prompt(length) for length in (1, 7, 20, 33, 40, 5, 20, 90)]
    return prompts, [replace(any_params(number, guided=False), max_tokens=30) for number in range(len(prompts))]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("tokens", [1024, 160])
def test_drafts_of_a_model_change_nothing(tiny: Tiny, nearly: Path, adaptive: bool, tokens: int) -> None:
    prompts, params = requests()
    plain = tiny.engine()
    expected = [o.token_ids for o in plain.generate(prompts, params)]
    engine = drafting(plain, nearly, adaptive=adaptive, kv_cache_tokens=tokens, max_num_batched_tokens=48)
    assert [o.token_ids for o in engine.generate(prompts, params)] == expected
    stats = engine.stats()
    assert (stats.preemptions > 0) == (tokens == 160)
    if not adaptive:
        assert 0.1 * stats.draft_tokens < stats.accepted_draft_tokens < stats.draft_tokens
    assert_nothing_is_left(engine)


@pytest.mark.parametrize("limit", ["max_num_seqs", "max_num_batched_tokens"])
def test_steps_of_a_single_row_are_measured(tiny: Tiny, nearly: Path, limit: str) -> None:
    plain = tiny.engine()
    (expected,) = plain.generate([make_prompt(9)], greedy(20))
    engine = drafting(plain, nearly, adaptive=True, **{limit: 1})
    assert engine.generate([make_prompt(9)], greedy(20))[0].token_ids == expected.token_ids


def test_no_step_that_is_measured_exceeds_a_short_context(tmp_path: Path) -> None:
    """A model with learned positions has none for what comes after its context."""
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=24)
    save_model(config, tmp_path)
    plain = make_engine(tmp_path)
    prompts, params = [make_prompt(9), make_prompt(20)], greedy(4)
    wanted = tokens(plain.generate(prompts, params))
    assert tokens(drafting(plain, tmp_path).generate(prompts, params)) == wanted


def test_a_draft_model_without_a_length_of_its_own_has_that_of_the_served_model(tmp_path: Path) -> None:
    save_model(OWN_ATTENTION["bloom"].config, tmp_path)
    plain = make_engine(tmp_path, max_model_len=48)
    wanted = alone(plain, make_prompt(9), greedy(12))
    engine = drafting(plain, tmp_path)
    assert alone(engine, make_prompt(9), greedy(12)) == wanted
    assert engine.stats().draft_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_model_drafts_what_is_drawn(tiny: Tiny, temperature: float) -> None:
    """The draft has the random numbers of the request, so that equal models draw equal tokens."""
    prompt, params = make_prompt(9), SamplingParams(max_tokens=31, temperature=temperature, seed=5)
    plain = tiny.engine()
    (expected,) = plain.generate([prompt], params)
    engine = drafting(plain, tiny.folder)
    (found,) = engine.generate([prompt], params)
    assert found.token_ids == expected.token_ids
    stats = engine.stats()
    assert stats.accepted_draft_tokens == stats.draft_tokens == 24
    assert stats.steps == 1 + 6


def test_a_prompt_with_a_known_prefix_is_not_read_again_for_drafts(tiny: Tiny) -> None:
    engine = drafting(tiny.engine(), tiny.folder)
    drafter, computed = drafter_of(engine), []
    run = drafter._run
    drafter._run = lambda plan: computed.append(plan.num_tokens) or run(plan)  # type: ignore[func-returns-value]
    first, second = make_prompt(60), [*make_prompt(60), 5, 6, 7]
    for prompt in (first, second):
        engine.generate([prompt], greedy(8))
    assert [tokens for tokens in computed if tokens > 8] == [61], "of the second prompt, 56 tokens are known"


def test_a_request_that_leaves_takes_its_drafts_along(tiny: Tiny, nearly: Path) -> None:
    engine = drafting(tiny.engine(), nearly)
    for number in range(3):
        engine.submit(make_prompt(20 + number), greedy(60), request_id=str(number))
    for _ in range(5):
        engine.step()
    assert drafter_of(engine)._tables.pool.num_used > 0
    engine.cancel("0")
    engine.cancel("1")
    drain(engine)
    assert_nothing_is_left(engine)


def test_a_draft_is_made_anew_after_a_step_that_ran_out_of_memory(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    plain = tiny.engine()
    (expected,) = plain.generate([make_prompt(9)], greedy(31))
    engine = drafting(plain, tiny.folder)
    engine.submit(make_prompt(9), greedy(31), request_id="it")
    engine.step()

    def lack_memory(*_: Any) -> None:
        hook.remove()
        raise torch.OutOfMemoryError("no memory")

    hook = plain.model.module.register_forward_pre_hook(lack_memory)
    assert drain(engine)["it"].token_ids == expected.token_ids
    assert engine.stats().accepted_draft_tokens == engine.stats().draft_tokens > 10
    assert "the draft model has failed" not in caplog.text
    assert_nothing_is_left(engine)


@pytest.mark.parametrize("num_requests", [1, 3])
def test_drafts_that_are_cut_for_lack_of_blocks_stay_right(
    tiny: Tiny, num_requests: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The token after the part of a draft that was used is the next one of the draft, which has been computed."""
    engine = drafting(tiny.engine(), tiny.folder, kv_cache_tokens=256)
    for seed in range(6):
        engine.generate([make_prompt(64, seed)], greedy(1))
    assert engine.stats().blocks_used == 0
    assert engine._scheduler.tables.pool.num_empty == 0
    prompts = [make_prompt(14 + number, 20 + number) for number in range(num_requests)]
    outputs = engine.generate(prompts, greedy(50, ignore_eos=True))
    assert all(output.num_accepted == output.num_drafted > 20 for output in outputs)
    assert "the draft model has failed" not in caplog.text


def failing(fault: Exception) -> Callable[[StepPlan], Sequence[Any]]:
    def run(plan: StepPlan) -> Sequence[Any]:
        raise fault

    return run


@pytest.mark.parametrize("fault", [OutOfMemory("no memory"), RuntimeError("broken")])
def test_a_draft_model_that_fails_costs_no_answer(
    tiny: Tiny, nearly: Path, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    plain = tiny.engine()
    (expected,) = plain.generate([make_prompt(9)], greedy(20))
    engine = drafting(plain, nearly)
    engine.submit(make_prompt(9), greedy(20), request_id="it")
    for _ in range(3):
        engine.step()
    drafter_of(engine)._run = failing(fault)
    assert drain(engine)["it"].token_ids == expected.token_ids
    assert "the draft model has failed; there are no more drafts" in caplog.text
    drafted = engine.stats().draft_tokens
    assert drafted > 0
    engine.generate([make_prompt(9)], greedy(20))
    assert engine.stats().draft_tokens == drafted
    assert_nothing_is_left(engine)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tiny, Path]:
    """A model and a draft model with one tokenizer. The first has tokens that the second lacks, and writes them."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level())
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    config = SERVED["llama"].config.to_dict()
    module = save_model(transformers.LlamaConfig(**config | {"vocab_size": 50 + len(tokenizer)}), target)
    save_model(transformers.LlamaConfig(**config | {"vocab_size": len(tokenizer)}), draft)
    for folder in (target, draft):
        tokenizer.save_pretrained(folder)
    return Tiny(target, module), draft


def test_a_token_that_the_draft_model_lacks_ends_the_drafts_of_its_request_alone(
    larger: tuple[Tiny, Path], caplog: pytest.LogCaptureFixture
) -> None:
    target, draft = larger
    plain = target.engine()
    engine = drafting(plain, draft)
    lacking = drafter_of(engine)._draft_vocab_size
    params = greedy(20, ignore_eos=True)
    in_prompt = [lacking, *make_prompt(9)]
    assert alone(engine, in_prompt, params) == alone(plain, in_prompt, params)
    assert engine.stats().draft_tokens == 0
    outputs = [(make_prompt(9, seed), alone(plain, make_prompt(9, seed), params)) for seed in range(40)]
    prompt, expected = next(each for each in outputs if max(each[1][:4]) < lacking <= max(each[1][4:]))
    for _ in range(2):
        before = engine.stats().draft_tokens
        assert alone(engine, prompt, params) == expected
        assert engine.stats().draft_tokens > before
    assert "the draft model has failed" not in caplog.text
    assert_nothing_is_left(engine)


def test_a_draft_of_a_client_is_refused_where_a_model_drafts(tiny: Tiny, nearly: Path) -> None:
    engine = drafting(tiny.engine(), nearly)
    with pytest.raises(InvalidRequest, match="speculative_config names a model that drafts instead"):
        engine.submit(make_prompt(9), greedy(3), RequestOptions(draft_input_ids=(5,)))


def test_why_a_model_cannot_draft_is_said_with_its_name(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 0}))
    reason = f"speculative_config: model is '{tmp_path}', which cannot draft: llama has vocab_size 0 in its config"
    with pytest.raises(UnsupportedModel, match=reason):
        drafting(tiny.engine(), tmp_path)


def test_a_model_with_other_tokens_cannot_draft(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="its tokenizer must have the same tokens as the one of"):
        drafting(tiny.engine(), default_model())
