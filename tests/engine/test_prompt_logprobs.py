"""`prompt_logprobs` are those of transformers, whatever the chunks, the cache, the neighbours and preemptions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import OPTConfig

from inflight import Engine, InvalidRequest, RequestOutput, SamplingParams
from inflight.model.sampling.piecewise import PIECE
from scripts.reference.tiny_models import VOCABULARY, save_model
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt, tokens

PROMPTS = [make_prompt(length, seed=length) for length in (1, 2, 30, 71, 8, 16)]


def scoring(max_tokens: int = 0, prompt_logprobs: int = 2, **others: Any) -> SamplingParams:
    return greedy(max_tokens, prompt_logprobs=prompt_logprobs, ignore_eos=True, **others)


def assert_right(module: Any, output: RequestOutput, count: int) -> None:
    """Each token but the first has the log-probability and the rank that transformers gives it."""
    with torch.inference_mode():
        rows = module(torch.tensor([output.prompt_ids])).logits[0, :-1].log_softmax(dim=-1)
    assert output.prompt_logprobs is not None
    first, *entries = output.prompt_logprobs
    assert first is None
    for entry, token, row in zip(entries, output.prompt_ids[1:], rows, strict=True):
        assert entry is not None
        assert entry.chosen == pytest.approx(row[token].item(), abs=1e-4)
        assert list(entry.top.values()) == pytest.approx(row.topk(count).values.tolist(), abs=1e-4)
        assert list(entry.top) == row.topk(count).indices.tolist()
        assert entry.rank == 1 + int((row > row[token]).sum())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "kv_cache_tokens": 96},
        {"max_num_batched_tokens": 7, "kv_cache_tokens": 96, "preemption_mode": "swap", "swap_space_tokens": 96},
        {"enable_chunked_prefill": False, "enable_prefix_caching": False, "batching_strategy": "static"},
    ],
)
def test_scores_are_those_of_transformers(tiny: Tiny, settings: dict[str, Any]) -> None:
    engine = tiny.engine(**settings)
    # Requests that end with their prompts, and others that go on, beside requests that only generate.
    plain = greedy(20, ignore_eos=True)
    params = [scoring(), scoring(20), plain, scoring(18, 5), scoring(), plain] * 2
    outputs = engine.generate(PROMPTS * 2, params)
    for output, given in zip(outputs, params, strict=True):
        assert len(output.token_ids) == given.max_tokens
        assert output.finish_reason == "length"
        if given is plain:
            assert output.prompt_logprobs is None
        else:
            assert_right(tiny.module, output, given.prompt_logprobs or 0)
    stats = engine.stats()
    assert stats.blocks_used == 0
    assert (stats.preemptions > 0) == ("kv_cache_tokens" in settings)
    if "swap_space_tokens" in settings:
        assert stats.swaps > 0


def test_scoring_changes_nobodys_tokens(tiny: Tiny) -> None:
    params = [greedy(20), SamplingParams(max_tokens=20, temperature=1.0, seed=3)]
    alone = tokens(tiny.engine().generate(PROMPTS[2:4], params))
    engine = tiny.engine(max_num_batched_tokens=24)
    outputs = engine.generate(
        [PROMPTS[2], PROMPTS[5], PROMPTS[3], PROMPTS[4]], [params[0], scoring(), params[1], scoring()]
    )
    assert [outputs[0].token_ids, outputs[2].token_ids] == alone
    scored = [SamplingParams(**{**vars(each), "prompt_logprobs": 3}) for each in params]
    assert tokens(tiny.engine().generate(PROMPTS[2:4], scored)) == alone


def test_a_prompt_in_the_cache_is_scored_anew_and_leaves_its_blocks_to_others(tiny: Tiny) -> None:
    engine = tiny.engine()
    (plain,) = engine.generate(PROMPTS[3], greedy(4))
    for _ in range(2):
        (scored,) = engine.generate(PROMPTS[3], scoring(4))
        assert (scored.num_cached_tokens, scored.token_ids) == (0, plain.token_ids)
        assert_right(tiny.module, scored, 2)
    fresh = tiny.engine()
    fresh.generate(PROMPTS[3], scoring())
    assert fresh.generate(PROMPTS[3], greedy(1))[0].num_cached_tokens == 64


def test_the_head_never_computes_more_than_a_piece(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny.engine(max_num_batched_tokens=512)
    sizes = watch_head(engine, monkeypatch)
    prompts = [make_prompt(200), make_prompt(31)]
    for output in engine.generate(prompts, scoring(0, 1)):
        assert_right(tiny.module, output, 1)
    assert sizes == [PIECE] * 3 + [199 + 30 - 3 * PIECE]
    engine.generate(prompts, greedy(3))
    assert len(sizes) == 4


def watch_head(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect for how many tokens the head is called by itself."""
    sizes: list[int] = []
    head: Callable[[torch.Tensor], torch.Tensor] = engine.model.forward.head

    def watched(_: object, hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(type(engine.model.forward), "head", watched)
    return sizes


def test_scores_come_with_the_chunks_that_they_belong_to(tiny: Tiny) -> None:
    engine = tiny.engine(max_num_batched_tokens=16)
    engine.submit(PROMPTS[2], scoring(2))
    counts = [len(output.prompt_logprobs or ()) for output in iter_steps(engine)]
    assert counts == [17, 30, 30]


def iter_steps(engine: Engine) -> Sequence[RequestOutput]:
    outputs = []
    while engine.has_work:
        for output in engine.step():
            outputs.append(RequestOutput(output.request_id, [], prompt_logprobs=list(output.prompt_logprobs or ())))
    return outputs


def test_samples_of_one_prompt_share_it_with_the_one_that_scores(tiny: Tiny) -> None:
    engine = tiny.engine()
    engine.submitter.submit_samples(PROMPTS[3], {"scored": scoring(3), "plain": greedy(3)})
    outputs = drain(engine)
    assert_right(tiny.module, outputs["scored"], 2)
    assert outputs["plain"].num_cached_tokens == 64


def test_prompts_of_nan_end_with_an_error_and_hurt_nobody(tiny: Tiny) -> None:
    engine = tiny.engine()
    want = engine.generate(PROMPTS[2], greedy(5))[0].token_ids

    def spoil(_: object, __: object, logits: torch.Tensor) -> torch.Tensor:
        return logits.index_fill(-1, torch.tensor([7]), torch.nan) if logits.shape[1] > 2 else logits

    handle = engine.model.module.lm_head.register_forward_hook(spoil)
    engine.submit(PROMPTS[3], scoring(3), request_id="scored")
    engine.submit(PROMPTS[2], greedy(5), request_id="plain")
    outputs = drain(engine)
    handle.remove()
    assert outputs["scored"].finish_reason == "error"
    assert outputs["scored"].error == "what the model computes for the prompt is not a number"
    assert outputs["plain"].token_ids == want
    assert engine.stats().blocks_used == 0


def test_max_tokens_0_takes_the_whole_context_and_the_whole_cache(tiny: Tiny) -> None:
    engine = tiny.engine(kv_cache_tokens=64, max_model_len=64)
    prompt = make_prompt(64)
    (output,) = engine.generate(prompt, scoring())
    assert_right(tiny.module, output, 2)
    with pytest.raises(InvalidRequest, match="prompt has 65 tokens; it must have at most 64, as the context is 64"):
        engine.generate(make_prompt(65), scoring())
    with pytest.raises(InvalidRequest, match="prompt has 65 tokens; it must have at most 64, as the KV cache holds 64"):
        tiny.engine(kv_cache_tokens=64).generate(make_prompt(65), scoring())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1.*or 0 where prompt_logprobs is given"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21; it must be at least 0 and at most 20"),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids has 129 tokens; it must have at most 128"),
        ({"logprob_token_ids": [160]}, "logprob_token_ids holds token 160; it must be at least 0 and below 160"),
    ],
)
def test_what_cannot_be_scored_is_refused(tiny: Tiny, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        tiny.engine().generate(PROMPTS[2], SamplingParams(**params))


def test_named_tokens_come_in_place_of_the_likeliest(tiny: Tiny) -> None:
    engine = tiny.engine()
    named = (3, 5, 159, 70)
    outputs = engine.generate(PROMPTS[2:4], [greedy(4, logprob_token_ids=named, logprobs=5), greedy(4, logprobs=1)])
    (mine, plain) = outputs
    with torch.inference_mode():
        logits = tiny.module(torch.tensor([mine.prompt_ids + mine.token_ids])).logits[0, len(mine.prompt_ids) - 1 : -1]
    for entry, row in zip(mine.logprobs or (), logits.log_softmax(dim=-1), strict=True):
        assert (entry.rank, entry.top) == (1, {})
        assert list(entry.others) == list(named)
        for token, (logprob, rank) in entry.others.items():
            assert logprob == pytest.approx(row[token].item(), abs=1e-4)
            assert rank == 1 + int((row > row[token]).sum())
    assert [len(entry.top) for entry in plain.logprobs or ()] == [1] * 4
    assert not any(entry.others for entry in plain.logprobs or ())


def test_a_model_that_calls_the_decoder_within_its_base_model_is_scored(tmp_path: Path) -> None:
    config = OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        word_embed_proj_dim=64,
        num_hidden_layers=2,
        ffn_dim=96,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    module = save_model(config, tmp_path)
    assert_right(module, make_engine(tmp_path).generate([PROMPTS[3]], scoring())[0], 2)
