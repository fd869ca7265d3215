"""Guided outputs follow their constraints, and change nothing for the requests beside them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from inflight import Engine, InvalidRequest, RequestOutput, SamplingParams, StructuredOutputs
from inflight.guided_decoding.token_masks import TokenMasks
from inflight.model.cpu import kernel_sampler
from inflight.model.sampling import torch_sampler
from tests.engine.models import drain, greedy, tokens
from tests.engine.sampling_reference import batch_with
from tests.unit.traces import read_trace

PROMPT = "A person as JSON: "
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["first_name", "age", "tags"],
    "additionalProperties": False,
}


def guided(temperature: float = 1.5, **wanted: Any) -> SamplingParams:
    constraint = StructuredOutputs(**(wanted or {"json": PERSON}))
    return SamplingParams(max_tokens=60, temperature=temperature, seed=7, structured_outputs=constraint)


def is_person(text: str) -> None:
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ({"json": PERSON}, is_person),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict) or pytest.fail(text)),
        ({"regex": "[A-Z][a-z]{2,8} [0-9]{4}"}, lambda text: re.fullmatch("[A-Z][a-z]{2,8} [0-9]{4}", text)[0]),
        ({"choice": ["positive", "negative"]}, lambda text: ["positive", "negative"].index(text)),
        ({"grammar": 'root ::= "(" root ")" | [0-9]'}, lambda text: re.fullmatch(r"\(*[0-9]\)*", text)[0]),
    ],
)
def test_what_is_not_cut_off_follows_the_constraint(
    texts: Engine, wanted: dict[str, Any], holds: Callable[[str], object]
) -> None:
    outputs = texts.generate([PROMPT] * 6, [replace(guided(**wanted), seed=i) for i in range(6)])
    complete = [output for output in outputs if output.finish_reason == "stop"]
    assert complete
    for output in complete:
        holds(output.text)
    assert {output.finish_reason for output in outputs} <= {"stop", "length"}


def test_the_same_seed_gives_the_same_tokens_whatever_else_runs(shallow: Engine) -> None:
    (alone,) = shallow.generate(PROMPT, guided())
    free = SamplingParams(max_tokens=40, temperature=1, seed=3, ignore_eos=True)
    (undisturbed,) = shallow.generate("Once upon a time", free)
    among = [guided(), free, guided(regex="[a-z ]{30,50}"), greedy(40), guided()]
    outputs = shallow.generate([PROMPT, "Once upon a time", PROMPT, PROMPT, PROMPT], among)
    assert tokens([outputs[0], outputs[4]]) == [alone.token_ids] * 2
    assert outputs[1].token_ids == undisturbed.token_ids


def test_a_scarce_cache_and_a_small_budget_change_nothing(shallow: Engine) -> None:
    params = [replace(guided(), seed=i) for i in range(6)]
    expected = tokens(shallow.generate([PROMPT] * 6, params))
    scarce = Engine(replace(shallow.config, kv_cache_tokens=160, max_num_batched_tokens=12), shallow.model)
    assert tokens(scarce.generate([PROMPT] * 6, params)) == expected
    assert scarce.stats().preemptions > 0
    assert scarce.stats().forced_tokens > 0


def test_forced_tokens_are_the_same_where_log_probabilities_need_a_step_for_each(shallow: Engine) -> None:
    before = shallow.stats()
    (fast,) = shallow.generate(PROMPT, guided())
    between = shallow.stats()
    (slow,) = shallow.generate(PROMPT, replace(guided(), logprobs=1))
    after = shallow.stats()
    assert slow.token_ids == fast.token_ids
    assert slow.logprobs is not None
    assert len(slow.logprobs) == len(slow.token_ids)
    assert between.forced_tokens - before.forced_tokens > 5
    assert after.forced_tokens == between.forced_tokens
    assert after.steps - between.steps == len(slow.token_ids)
    assert between.steps - before.steps == len(fast.token_ids) - (between.forced_tokens - before.forced_tokens)


def test_a_grammar_that_ends_ends_the_output_with_its_last_token(shallow: Engine) -> None:
    (output,) = shallow.generate(
        "Water is", SamplingParams(max_tokens=9, structured_outputs=StructuredOutputs(regex="wet!"))
    )
    assert (output.text, output.finish_reason) == ("wet!", "stop")


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({"min_tokens": 8}, "yes"),  # The grammar has no eight tokens.
        ({"ignore_eos": True}, "yes"),
        ({"logit_bias": {0: 100.0}}, "yes"),
        ({"bad_words": ("yes",)}, "yes"),  # The grammar allows nothing else.
        ({"stop": ("e",)}, "y"),
        ({"max_tokens": 1, "min_tokens": 1}, None),
    ],
)
def test_beside_other_parameters(shallow: Engine, others: dict[str, Any], text: str | None) -> None:
    params = {"max_tokens": 9, "temperature": 0.0, "structured_outputs": StructuredOutputs(choice=["yes", "yes sir"])}
    request = shallow.submit("Yes or no? Answer:", SamplingParams(**{**params, **others}))
    output = drain(shallow)[request]
    if text is not None:
        assert output.text.startswith(text)
        assert output.finish_reason == "stop"
    else:
        assert output.finish_reason in ("invalid", "length")


def test_no_token_is_left_if_bad_words_forbid_all_that_the_grammar_allows(shallow: Engine) -> None:
    params = SamplingParams(max_tokens=4, bad_words=("a", "b"), structured_outputs=StructuredOutputs(regex="[ab]"))
    output = drain_one(shallow, params)
    assert output.finish_reason == "invalid"
    assert "all tokens are forbidden by what the request asks for" in (output.error or "")


def drain_one(engine: Engine, params: SamplingParams) -> RequestOutput:
    request = engine.submit(PROMPT, params)
    return drain(engine)[request]


def test_a_refused_constraint_costs_nothing(shallow: Engine) -> None:
    with pytest.raises(InvalidRequest, match="json cannot be enforced"):
        shallow.submit(PROMPT, guided(json={"uniqueItems": True}))
    assert not shallow.has_work


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("vocabulary", [33, 512, 49_152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_and_torch_choose_the_same_allowed_tokens(vocabulary: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn((6, vocabulary), generator=generator).to(dtype)
    rng = np.random.default_rng(vocabulary)
    index = np.array([0, -1, 1, 2, -1, 3])
    allowed = rng.random((4, -(-vocabulary // 32) * 32)) < 0.1
    allowed[:, vocabulary:] = False
    allowed[1] = False
    allowed[1, vocabulary - 1] = True
    allowed[3] = False  # Nothing is left.
    masks = TokenMasks(index, np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
    for params in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.8, "top_k": 20}):
        batch = batch_with([0.1, 0.3, 0.5, 0.7, 0.9, 0.2], **params)
        chosen = [way.sample(logits, batch, masks)[0] for way in (kernel_sampler, torch_sampler)]
        assert chosen[0] == chosen[1]
        assert [chosen[0][2], chosen[0][5]] == [vocabulary - 1, -1]
        assert all(allowed[mask, token] for mask, token in zip(index, chosen[0], strict=True) if mask in (0, 2))


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(
    "masks",
    [
        TokenMasks(np.array([0, 2]), np.zeros((2, 2), np.int32)),
        TokenMasks(np.array([0]), np.zeros((1, 2), np.int32)),
        TokenMasks(np.array([0, 0]), np.zeros((1, 1), np.int32)),
    ],
)
@pytest.mark.parametrize("way", [kernel_sampler])
def test_masks_that_do_not_fit_are_an_error(way: ModuleType, masks: TokenMasks) -> None:
    with pytest.raises(RuntimeError, match="mask"):
        way.sample(torch.zeros((2, 40)), batch_with([0.1, 0.2]), masks)


def test_the_trace_tells_what_a_grammar_costs(shallow: Engine, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traced = Engine(replace(shallow.config, trace_file=str(path)), shallow.model)
    output = traced.generate([PROMPT], guided())[0]
    (request,) = read_trace(path).requests.values()
    forced = traced.stats().forced_tokens
    assert (request.args["structured_outputs"], request.args["forced_tokens"]) == ("json", forced)
    assert 0 < request.args["compile_ms"] <= 1000 * traced.stats().grammar_compile_seconds + 0.001
    assert request.args["mask_ms"] == pytest.approx(1000 * traced.stats().grammar_mask_seconds, abs=0.001)
    assert 0 < forced < len(output.token_ids)
