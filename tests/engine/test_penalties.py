"""Penalties change logits as transformers and OpenAI define them. Each row has the penalties of its own request."""

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from inflight import SamplingParams
from inflight.logits_processors.edits import LogitEdits
from inflight.model.cpu import kernel_sampler
from inflight.model.sampling import torch_sampler
from inflight.model.sampling.apply_edits import apply_edits
from inflight.request import Request
from tests.engine.models import Tiny, make_prompt
from tests.engine.sampling_reference import UNCUT, asking, batch_of, batch_with
from tests.unit.builders import make_request

VOCABULARY = 40
PROMPT, OUTPUT = [3, 3, 4, 5, 39], [4, 7, 7, 7, 0]


def midway(**params: Any) -> Request:
    """A request that already has some output."""
    request = make_request("r", PROMPT, max_tokens=99, num_logits=VOCABULARY, **{**UNCUT, **params})
    request.append(OUTPUT)
    return request


def penalised(logits: torch.Tensor, *requests: Request) -> torch.Tensor:
    return apply_edits(logits, batch_of(requests).edits)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("penalty", [0.01, 0.7, 1.3, 5.0])
def test_the_repetition_penalty_equals_that_of_transformers(logits: torch.Tensor, penalty: float) -> None:
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), logits.clone())
    torch.testing.assert_close(penalised(logits, midway(repetition_penalty=penalty)), theirs)


@pytest.mark.parametrize(("presence", "frequency"), [(0.5, 0.0), (0.0, 0.4), (-2.0, 2.0), (1.5, -0.3)])
def test_presence_and_frequency_penalties_count_only_the_output(
    logits: torch.Tensor, presence: float, frequency: float
) -> None:
    expected = logits.clone()
    for token, times in Counter(OUTPUT).items():
        expected[0, token] -= presence + times * frequency
    shaped = penalised(logits, midway(presence_penalty=presence, frequency_penalty=frequency))
    torch.testing.assert_close(shaped, expected)


def test_the_repetition_penalty_is_applied_before_the_others(logits: torch.Tensor) -> None:
    both = midway(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25)
    halfway = penalised(logits, midway(repetition_penalty=1.5))
    expected = penalised(halfway, midway(presence_penalty=0.5, frequency_penalty=0.25))
    torch.testing.assert_close(penalised(logits, both), expected)


def test_the_first_output_token_has_no_presence_or_frequency_penalty(logits: torch.Tensor) -> None:
    request = asking(presence_penalty=2.0, frequency_penalty=2.0, position=5)
    torch.testing.assert_close(penalised(logits, request), logits)


def test_every_row_has_its_own_penalties(logits: torch.Tensor) -> None:
    requests = [midway(), midway(repetition_penalty=2.0), midway(presence_penalty=1.0), midway()]
    shaped = penalised(logits.expand(4, -1), *requests)
    for row, request in zip(shaped, requests, strict=True):
        torch.testing.assert_close(row[None], penalised(logits, request))


def test_penalties_do_not_change_the_given_tensor(logits: torch.Tensor) -> None:
    before = logits.clone()
    penalised(logits, midway(repetition_penalty=2.0, presence_penalty=1.0))
    assert torch.equal(logits, before)
    assert penalised(logits, midway()) is logits


def test_half_precision_logits_are_penalised_in_full_precision(logits: torch.Tensor) -> None:
    halves = logits.bfloat16()
    request = midway(repetition_penalty=1.01, frequency_penalty=0.001)
    torch.testing.assert_close(penalised(halves, request), penalised(halves.float(), request))


EDITED = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.3, "presence_penalty": 1.5, "frequency_penalty": -0.7},
    {},
    {"logit_bias": {3: 5.0, 39: -100.0, 0: 2.5}},
    {"min_tokens": 50, "stop_token_ids": [1, 3, 5, 7, 9]},
    {"bad_words": [[7, 7, 0, 12], [13], [5, 14]]},
    {"allowed_token_ids": [0, 8, 31]},
    {"repetition_penalty": 1e-12, "logit_bias": {8: 100.0}, "presence_penalty": -2.0, "bad_words": [[8]]},
]


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_kernels_edit_logits_as_torch_does(dtype: torch.dtype, temperature: float) -> None:
    rows = 40 * len(EDITED)
    logits = (torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    requests = [midway(temperature=temperature, seed=row, **EDITED[row % len(EDITED)]) for row in range(rows)]
    tokens, _ = kernel_sampler.sample(logits, batch_of(requests))
    assert tokens == torch_sampler.sample(logits, batch_of(requests))[0]
    plain, _ = kernel_sampler.sample(logits, batch_of([midway(temperature=temperature, seed=r) for r in range(rows)]))
    for number, params in enumerate(EDITED):
        assert (tokens[number :: len(EDITED)] != plain[number :: len(EDITED)]) == bool(params)


@pytest.mark.usefixtures("cpu_kernels")
def test_an_edit_of_a_token_that_does_not_exist_is_an_error(logits: torch.Tensor) -> None:
    for wrong in (-1, VOCABULARY, 2**40):
        batch = batch_with([0.0])
        batch.edits.begin_row(0)
        batch.edits.forbid([3, wrong])
        with pytest.raises(RuntimeError, match="an edit has a token that is not below 40"):
            kernel_sampler.sample(logits, batch)


def test_an_edit_of_no_token_is_none() -> None:
    edits = LogitEdits()
    edits.begin_row(0)
    edits.forbid([])
    edits.penalise([], 2.0)
    assert edits.edits == []


@pytest.mark.parametrize("penalty", [0.5, 1.8])
def test_greedy_output_with_a_repetition_penalty_equals_that_of_transformers(tiny: Tiny, penalty: float) -> None:
    prompt = make_prompt(20)
    ids = torch.tensor([prompt])
    theirs = tiny.module.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, repetition_penalty=penalty
    )
    params = SamplingParams(max_tokens=30, temperature=0, repetition_penalty=penalty)
    (output,) = tiny.engine().generate(prompt, params)
    assert output.token_ids == theirs[0, 20:].tolist()


def test_a_strong_presence_penalty_gives_more_distinct_tokens(tiny: Tiny) -> None:
    plain, varied = tiny.engine().generate(
        [make_prompt(20)] * 2,
        [SamplingParams(max_tokens=60, temperature=0, presence_penalty=penalty) for penalty in (0.0, 2.0)],
    )
    assert len(set(varied.token_ids)) > len(set(plain.token_ids))
