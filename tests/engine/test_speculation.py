"""Drafts change no output: the tokens, log-probabilities and ends are those without them."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight import (
    Engine,
    EngineConfig,
    InvalidRequest,
    RequestOptions,
    RequestOutput,
    SamplingParams,
    StructuredOutputs,
)
from inflight.request import Request
from tests.engine.models import Tiny, drain, greedy, make_prompt
from tests.engine.test_cuda_forward import Rerun, as_on_a_gpu
from tests.engine.test_guided_generation import PERSON

DRAFTS: dict[str, dict[str, Any]] = {
    "short": {"method": "ngram", "adaptive": False, "num_speculative_tokens": 2, "prompt_lookup_min": 1},
    "long": {"method": "ngram", "adaptive": False, "num_speculative_tokens": 20, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "adaptive": False, "prompt_lookup_min": 1},
    "adaptive": {"method": "suffix"},
}
CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"
TEXTS = [
    f"The code:\n{CODE}\nThe same code again:\n{CODE}\nOnce more:\n",
    "One, two, three. One, two, three.",
    "A tale",
]


class Drafter:
    """Drafts what the model is known to say, wrong in some places."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]], right: float, seed: int) -> None:
        self._outputs, self._right, self._random = outputs, right, random.Random(seed)

    def outlook(self, request: Request) -> float:
        return 0.9

    def seconds_per_token(self, num_requests: int) -> float:
        return 0.0

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        return [self._draft(request, count) for request, count in wanted]

    def _draft(self, request: Request, count: int) -> list[int]:
        known = self._outputs[tuple(request.prompt_ids)][request.num_output :]
        return [token if self._random.random() < self._right else 3 for token in [*known, *[5] * count][:count]]

    def observe(self, request: Request) -> None:
        pass

    def completed(self, request: Request) -> None:
        pass

    def forget(self, request: Request) -> None:
        pass


def seen(outputs: Sequence[RequestOutput]) -> list[Any]:
    return [
        (o.token_ids, o.text, o.finish_reason, [(e.chosen, e.rank, e.top, e.others) for e in o.logprobs or ()])
        for o in outputs
    ]


def drafting(engine: Engine, config: dict[str, Any], **others: Any) -> Engine:
    """Another engine with the same model that drafts."""
    return Engine(replace(engine.config, speculative_config=config, **others), engine.model)


def any_params(seed: int, *, guided: bool) -> SamplingParams:
    """Random parameters of every kind."""
    rng = random.Random(seed)
    chosen: dict[str, Any] = {
        "max_tokens": rng.randint(1, 40),
        "temperature": rng.choice([0, 0.7, 1.0, 1.3]),
        "top_p": rng.choice([1.0, 0.9]),
        "top_k": rng.choice([0, 0, 5]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.2]),
        "frequency_penalty": rng.choice([0.0, 0.0, 0.5]),
        "presence_penalty": rng.choice([0.0, 0.0, -0.5]),
        "logprobs": rng.choice([None, None, 0, 2]),
        "logit_bias": rng.choice([{}, {20: 2.0}]),
        "seed": seed,
    }
    chosen["min_tokens"] = rng.choice([0, 0, chosen["max_tokens"] // 2])
    if chosen["logprobs"] is not None:
        chosen["logprob_token_ids"] = rng.choice([(), (7, 9)])
    if guided:
        chosen["stop"] = rng.choice([(), ("two", "b)")])
        chosen["bad_words"] = rng.choice([(), ("return",)])
        constraint = rng.choice(
            [None, None, {"json": PERSON}, {"regex": "[a-z ]{10,30}"}, {"choice": ["yes", "yes sir"]}]
        )
        chosen["structured_outputs"] = StructuredOutputs(**constraint) if constraint else None
        # A grammar may need others.
        chosen["allowed_token_ids"] = None if constraint else rng.choice([None, None, None, tuple(range(3, 60))])
    return SamplingParams(**chosen)


PROMPTS = [text for text in TEXTS for _ in range(4)]
PARAMS = [any_params(number, guided=True) for number in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def without_drafts(shallow: Engine) -> list[RequestOutput]:
    return shallow.generate(PROMPTS, PARAMS)


@pytest.mark.parametrize("drafts", DRAFTS)
def test_outputs_of_texts_are_those_without_drafts(
    shallow: Engine, without_drafts: list[RequestOutput], drafts: str
) -> None:
    """In float32, rows of several tokens round differently, so that log-probabilities are equal up to rounding."""
    engine = drafting(shallow, DRAFTS[drafts])
    for found, wanted in zip(engine.generate(PROMPTS, PARAMS), without_drafts, strict=True):
        assert (found.token_ids, found.text, found.finish_reason) == (
            wanted.token_ids,
            wanted.text,
            wanted.finish_reason,
        )
        chosen = [entry.chosen for entry in found.logprobs or ()]
        assert chosen == pytest.approx([entry.chosen for entry in wanted.logprobs or ()], abs=1e-3)
    stats = engine.stats()
    assert stats.blocks_used == 0
    if drafts != "adaptive":
        assert 0 < stats.accepted_draft_tokens < stats.draft_tokens


def test_with_the_kernels_of_the_processor_all_is_the_same_bit_by_bit(shallow_fast: Engine) -> None:
    params = [any_params(100 + number, guided=True) for number in range(len(PROMPTS))]
    expected = seen(shallow_fast.generate(PROMPTS, params))
    for config in (DRAFTS["long"], DRAFTS["suffix"]):
        engine = drafting(shallow_fast, config)
        assert seen(engine.generate(PROMPTS, params)) == expected
        assert engine.stats().accepted_draft_tokens > 0
    scarce = drafting(shallow_fast, DRAFTS["long"], kv_cache_tokens=112, max_num_batched_tokens=48)
    assert seen(scarce.generate(PROMPTS, params)) == expected
    assert scarce.stats().preemptions > 0


@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
def test_drafts_that_are_right_or_wrong_change_nothing(tiny: Tiny, right: float) -> None:
    prompts = [make_prompt(length) for length in (1, 7, 20, 33, 40, 5)]
    params = [replace(any_params(number, guided=False), max_tokens=30, min_tokens=0) for number in range(len(prompts))]
    plain = tiny.engine()
    expected = plain.generate(prompts, params)
    engine = drafting(plain, DRAFTS["long"], kv_cache_tokens=120, max_num_batched_tokens=40)
    known = {tuple(prompt): list(output.token_ids) for prompt, output in zip(prompts, expected, strict=True)}
    engine._scheduler._speculator._drafter = Drafter(known, right, seed=1)  # type: ignore[attr-defined]
    found = engine.generate(prompts, params)
    assert [o.token_ids for o in found] == [o.token_ids for o in expected]
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.blocks_used == 0
    assert (stats.accepted_draft_tokens > 0) == (right > 0)
    if right == 1.0:
        assert stats.steps < plain.stats().steps / 2


def test_what_a_client_gives_as_a_draft_is_confirmed(tiny: Tiny) -> None:
    engine = tiny.engine(speculative_config={"adaptive": False, "num_speculative_tokens": 8})
    (expected,) = tiny.engine().generate([make_prompt(9)], greedy(33))
    options = RequestOptions(draft_input_ids=tuple(expected.token_ids))
    engine.submit(make_prompt(9), greedy(33), options, request_id="drafted")
    assert drain(engine)["drafted"].token_ids == expected.token_ids
    assert engine.stats().steps == 1 + 4
    engine.submit(make_prompt(9), greedy(33), RequestOptions(num_speculative_tokens=0), request_id="plain")
    before = engine.stats().draft_tokens
    assert drain(engine)["plain"].token_ids == expected.token_ids
    assert engine.stats().draft_tokens == before
    with pytest.raises(InvalidRequest, match="draft_input_ids holds token 160"):
        engine.submit(make_prompt(9), greedy(3), RequestOptions(draft_input_ids=(160,)))
    with pytest.raises(InvalidRequest, match="speculative_config"):
        tiny.engine().submit(make_prompt(9), greedy(3), RequestOptions(draft_input_ids=(5,)))


def test_captured_steps_compute_drafts(tiny: Tiny) -> None:
    prompts, params = [make_prompt(5), make_prompt(17)], [greedy(12), greedy(9)]
    expected = [o.token_ids for o in tiny.engine().generate(prompts, params)]
    graphs = Rerun()
    config = {"adaptive": False, "num_speculative_tokens": 3}
    # As many slots as requests: the interpreter takes long for each size that is captured.
    engine = as_on_a_gpu(tiny, graphs, max_num_seqs=2, speculative_config=config)
    known = {tuple(prompt): list(output) for prompt, output in zip(prompts, expected, strict=True)}
    engine._scheduler._speculator._drafter = Drafter(known, 0.9, seed=2)  # type: ignore[attr-defined]
    before = sum(graphs.runs)
    assert [o.token_ids for o in engine.generate(prompts, params)] == expected
    stats = engine.stats()
    assert stats.accepted_draft_tokens > 0
    assert sum(graphs.runs) - before == stats.steps - 1, "all steps but the one with the prompts are captured ones"


def test_not_a_number_behind_a_wrong_draft_is_not_read(tiny: Tiny) -> None:
    """The keys and values of a rejected token may be NaN; later steps must not see them."""
    (expected,) = tiny.engine().generate([make_prompt(9)], greedy(20))
    engine = tiny.engine(speculative_config={"adaptive": False, "num_speculative_tokens": 4})
    known = {tuple(make_prompt(9)): list(expected.token_ids)}
    engine._scheduler._speculator._drafter = Drafter(known, 0.5, seed=3)  # type: ignore[attr-defined]
    poison = 3  # What the drafter says where it is wrong.
    assert poison not in expected.token_ids
    handle = engine.model.module.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, output: output.masked_fill((inputs[0] == poison)[..., None], math.nan)
    )
    (found,) = engine.generate([make_prompt(9)], greedy(20))
    handle.remove()
    assert engine.stats().preemptions == 1
    assert (found.token_ids, found.finish_reason) == (expected.token_ids, expected.finish_reason)


def test_a_draft_beside_a_token_that_is_forced_and_forbidden_costs_nothing(shallow: Engine) -> None:
    """A forced token is not sampled. Behind a draft it is, and then bad words leave none; the draft is right."""
    assert shallow.encoder is not None
    (a,), drafts = shallow.encoder.encode("a"), DRAFTS["short"]
    constraint = StructuredOutputs(regex="([ab]1){20}")
    params = greedy(60, logit_bias={a: 100}, structured_outputs=constraint, bad_words=("1",))
    (expected,) = shallow.generate(["A word: "], params)
    assert expected.text == "a1" * 20
    engine = drafting(shallow, drafts)
    (output,) = engine.generate(["A word: "], params)
    assert output.token_ids == expected.token_ids
    assert output.num_accepted > 0
    assert engine.stats().preemptions == 0


def test_settings_are_checked(tmp_path: Path) -> None:
    for config, message in (
        ({"method": "eagle"}, "method is 'eagle'; it must be one of ngram, suffix, draft_model"),
        ({"method": "draft_model"}, "the method 'draft_model' needs a model"),
        ({"method": "ngram", "model": "small"}, "the other ones have none"),
        ({"method": "draft_model", "model": 7}, "model is 7; it must be a folder or a hub id"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0; it must be a whole number from 1 to 64"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "it must be at least prompt_lookup_min, 5"),
        ({"tree": 3}, "speculative_config has 'tree'"),
    ):
        with pytest.raises(ValueError, match=message):
            EngineConfig(model=str(tmp_path), speculative_config=config)
