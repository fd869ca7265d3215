"""Sampling parameters are checked when they are made."""

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight import InvalidRequest, SamplingParams
from inflight.sampling_params import MAX_LOGPROBS, MAX_SEED, MAX_STOP_STRINGS

BOUNDS = {
    # Field: values at its bounds, values beyond them, what the message says.
    "max_tokens": ([1, 10**9, -1], [0, -2], "at least 1, or -1, for all that there is room for"),
    "min_tokens": ([0], [-1], "at least 0"),
    "temperature": ([0, 0.0, 100.0], [-0.1], "at least 0"),
    "top_k": ([-1, 0, 1], [-2], "at least -1"),
    "top_p": ([1e-6, 1, 1.0], [0, -0.5, 1.01], "over 0 and at most 1"),
    "min_p": ([0, 1], [-0.1, 1.1], "at least 0 and at most 1"),
    "repetition_penalty": ([0.01, 5.0], [0, -1.0], "over 0"),
    "presence_penalty": ([-2, 2], [-2.1, 2.1], "at least -2 and at most 2"),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1], "at least -2 and at most 2"),
    "seed": ([0, MAX_SEED], [-1, MAX_SEED + 1], f"at least 0 and at most {MAX_SEED}"),
    "logprobs": ([0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1], f"at least 0 and at most {MAX_LOGPROBS}"),
}
WHOLE = ["max_tokens", "min_tokens", "top_k", "seed", "logprobs"]
ALWAYS_SET = ["min_tokens", "presence_penalty", "frequency_penalty"]


def refused(says: str, **fields: Any) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        SamplingParams(**fields)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (good, _, _) in BOUNDS.items() for v in good])
def test_a_value_at_its_bound_is_taken(field: str, value: float) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value", "bound"), [(f, v, says) for f, (_, bad, says) in BOUNDS.items() for v in bad]
)
def test_a_value_beyond_its_bound_is_refused_with_field_value_and_bound(field: str, value: float, bound: str) -> None:
    refused(f"{field} is {value}; it must be {bound}", **{field: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", BOUNDS)
def test_what_is_not_finite_is_refused(field: str, value: float) -> None:
    refused(f"{field} is {value}; it must be", **{field: value})


@pytest.mark.parametrize("field", BOUNDS)
def test_a_number_too_large_for_a_float_is_compared_all_the_same(field: str) -> None:
    """JSON allows it."""
    bound = BOUNDS[field][2]
    refused(f"it must be {BOUNDS[field][2]}", **{field: -(10**400)})
    if "at most" in bound:
        refused(f"it must be {bound}", **{field: 10**400})


@pytest.mark.parametrize("value", ["5", "", b"5", [5], True, 1j])
@pytest.mark.parametrize("field", BOUNDS)
def test_what_is_no_number_is_refused(field: str, value: object) -> None:
    refused(f"{field} is {value!r}; it must be", **{field: value})


@pytest.mark.parametrize("field", WHOLE)
def test_what_must_be_whole_may_not_have_a_fraction(field: str) -> None:
    refused(f"{field} is 1.5; it must be", **{field: 1.5})


@pytest.mark.parametrize("field", ALWAYS_SET)
def test_fields_that_the_model_has_no_say_in_cannot_be_none(field: str) -> None:
    refused(f"{field} is None; it must be", **{field: None})


@pytest.mark.parametrize("field", BOUNDS)
def test_numpy_numbers_are_numbers(field: str) -> None:
    value = np.int64(1) if field in WHOLE else np.float32(1)
    assert getattr(SamplingParams(**{field: value}), field) == 1


def test_nothing_given_leaves_everything_to_the_model() -> None:
    params = SamplingParams()
    left = [f.name for f in dataclasses.fields(params) if getattr(params, f.name) is None]
    assert left == [
        "max_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "seed",
        "allowed_token_ids",
        "logprobs",
        "prompt_logprobs",
        "structured_outputs",
    ]


def test_min_tokens_may_reach_but_not_pass_max_tokens() -> None:
    SamplingParams(min_tokens=5, max_tokens=5)
    refused("min_tokens is 6; it must not be over max_tokens, 5", min_tokens=6, max_tokens=5)


def test_one_stop_string_is_as_good_as_a_list_of_one() -> None:
    assert SamplingParams(stop="END").stop == SamplingParams(stop=["END"]).stop == ("END",)


def test_stop_strings_are_texts_of_at_least_a_character() -> None:
    refused("stop holds an empty text; each must have at least 1 character", stop=["a", ""])
    refused("stop", stop=["a", 5])
    refused("stop", stop=[b"a"])
    refused("stop", stop=5)
    refused("stop", stop=None)


def test_there_may_be_so_many_stop_strings_and_no_more() -> None:
    SamplingParams(stop=["x"] * MAX_STOP_STRINGS)
    refused("stop has 17 texts; it must have at most 16", stop=["x"] * (MAX_STOP_STRINGS + 1))


def test_stop_tokens_are_whole_numbers_from_zero() -> None:
    assert SamplingParams(stop_token_ids=[0, 5]).stop_token_ids == (0, 5)
    refused("stop_token_ids is -1; it must be at least 0", stop_token_ids=[3, -1])
    for wrong in (5, None, "5", [1.5], ["5"], [None]):
        refused("stop_token_ids", stop_token_ids=wrong)


def test_whether_to_ignore_the_end_is_true_or_false() -> None:
    refused("ignore_eos is 'false'; it must be", ignore_eos="false")


def test_parameters_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().max_tokens = 5  # type: ignore[misc]


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=3),
)  # fmt: skip


@given(st.sampled_from([field.name for field in dataclasses.fields(SamplingParams)]), ANYTHING)
def test_whatever_is_given_it_is_taken_or_refused_by_name(field: str, value: object) -> None:
    try:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    except InvalidRequest as refusal:
        assert str(refusal).startswith(field)  # noqa: PT017
