"""What the model's generation_config says where a request says nothing."""

import pytest

from inflight import SamplingParams
from inflight.generation_defaults import GenerationDefaults

NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
SAMPLES = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9}


def sampling(params: SamplingParams) -> dict[str, float | None]:
    return {name: getattr(params, name) for name in ("temperature", *NEUTRAL)}


def filled(config: dict[str, object], **asked: object) -> dict[str, float | None]:
    return sampling(GenerationDefaults.of(config).fill(SamplingParams(**asked)))  # type: ignore[arg-type]


def test_a_model_that_says_nothing_is_greedy() -> None:
    assert filled({}) == {"temperature": 0.0, **NEUTRAL}


def test_a_model_that_does_not_sample_is_greedy_whatever_else_it_says() -> None:
    assert filled({**SAMPLES, "do_sample": False}) == {"temperature": 0.0, **NEUTRAL}


def test_a_model_that_samples_does_so_as_it_says() -> None:
    assert filled(SAMPLES) == {**NEUTRAL, "temperature": 0.6, "top_k": 20, "top_p": 0.9}


def test_a_model_that_samples_without_a_temperature_has_one() -> None:
    assert filled({"do_sample": True}) == {"temperature": 1.0, **NEUTRAL}


@pytest.mark.parametrize("asked", [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"temperature": 1.0}])
def test_a_request_that_asks_for_sampling_gets_it_from_a_greedy_model(asked: dict[str, float]) -> None:
    assert filled({}, **asked) == {"temperature": 1.0, **NEUTRAL, **asked}


def test_a_request_may_be_greedy_with_a_model_that_samples() -> None:
    assert filled(SAMPLES, temperature=0)["temperature"] == 0


def test_what_a_request_says_counts_and_the_model_fills_in_the_rest() -> None:
    assert filled(SAMPLES, top_p=0.5) == {**NEUTRAL, "temperature": 0.6, "top_k": 20, "top_p": 0.5}


def test_the_repetition_penalty_applies_to_greedy_requests_too() -> None:
    assert filled({"repetition_penalty": 1.2})["repetition_penalty"] == 1.2
    assert filled({"repetition_penalty": 1.2}, repetition_penalty=1.0)["repetition_penalty"] == 1.0


def test_a_seed_alone_asks_for_no_sampling() -> None:
    assert filled({}, seed=5)["temperature"] == 0.0


def test_null_counts_as_not_said() -> None:
    assert filled({"do_sample": None, "temperature": None, "repetition_penalty": None}) == filled({})


def test_the_number_of_tokens_is_the_models_or_sixteen() -> None:
    assert GenerationDefaults.of({}).max_tokens == 16
    assert GenerationDefaults.of({"max_new_tokens": None}).max_tokens == 16
    assert GenerationDefaults.of({"max_new_tokens": 40}).max_tokens == 40


def test_max_tokens_and_all_that_is_not_sampling_stay_as_they_are() -> None:
    asked = SamplingParams(max_tokens=None, min_tokens=3, stop=("x",), seed=7, presence_penalty=0.5)
    given = GenerationDefaults.of(SAMPLES).fill(asked)
    assert (given.max_tokens, given.min_tokens, given.stop, given.seed) == (None, 3, ("x",), 7)
    assert given.presence_penalty == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("top_p", 1.5), ("top_k", -2), ("top_k", 2.5), ("min_p", 2), ("temperature", -1.0)),
        *(("repetition_penalty", 0), ("repetition_penalty", "1.1"), ("max_new_tokens", 0), ("do_sample", "false")),
    ],
)
def test_values_that_no_request_may_have_are_ignored_with_a_warning(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    rest = {field: given for field, given in SAMPLES.items() if field != name}
    assert GenerationDefaults.of({**rest, name: value}) == GenerationDefaults.of(rest)
    (record,) = caplog.records
    assert f"the generation config: {name} is" in record.getMessage()
    assert repr(value).strip("'") in record.getMessage()


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    defaults = GenerationDefaults.of({"do_sample": True, "top_k": 50.0, "max_new_tokens": 2048.0})
    assert (repr(defaults.sampling["top_k"]), repr(defaults.max_tokens)) == ("50", "2048")


def test_a_top_p_of_0_leaves_the_likeliest_token_as_in_transformers() -> None:
    assert filled({**SAMPLES, "top_p": 0.0}) == {"temperature": 0.0, **NEUTRAL}


def test_suppressed_tokens_are_those_that_are_tokens() -> None:
    assert GenerationDefaults.of({}).suppress_tokens == ()
    assert GenerationDefaults.of({"suppress_tokens": [258883, 258882, -1, 258882]}).suppress_tokens == (258882, 258883)


@pytest.mark.parametrize("value", [5, "5", [5, None], [True]])
def test_suppressed_tokens_must_be_a_list_of_tokens(value: object, caplog: pytest.LogCaptureFixture) -> None:
    assert GenerationDefaults.of({"suppress_tokens": value}).suppress_tokens == ()
    assert f"suppress_tokens is {value!r}; it must be a list of token ids" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_repeat_ngram_size", 3),
        ("bad_words_ids", [[7, 8]]),
        ("num_beams", 4),
        ("min_length", 9),
        ("guidance_scale", 1.5),
        ("watermarking_config", {"bias": 2.0}),
        ("stop_strings", ["###"]),
        ("encoder_repetition_penalty", 1.2),
        ("encoder_no_repeat_ngram_size", 3),
    ],
)
def test_what_else_changes_greedy_tokens_is_named(name: str, value: object, caplog: pytest.LogCaptureFixture) -> None:
    assert GenerationDefaults.of({name: value}) == GenerationDefaults.of({})
    assert f"{name} is {value!r}, which is ignored, so greedy tokens may differ" in caplog.text


def test_neutral_values_need_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    GenerationDefaults.of(
        {
            **{"num_beams": 1, "guidance_scale": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": None},
            **{"suppress_tokens": [], "encoder_repetition_penalty": 1.0},
            **{**SAMPLES, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0, "top_h": None},
        }
    )
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "value"),
    [("typical_p", 0.95), ("epsilon_cutoff", 3e-4), ("eta_cutoff", 0.002), ("top_h", 1.0), ("typical_p", "0.9")],
)
def test_what_else_changes_sampled_tokens_is_named_if_the_model_samples(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    GenerationDefaults.of({**SAMPLES, "do_sample": False, name: value})
    assert not caplog.records
    assert GenerationDefaults.of({**SAMPLES, name: value}) == GenerationDefaults.of(SAMPLES)
    (record,) = caplog.records
    assert f"{name} is {value!r}, which is ignored, so sampled tokens may be some that" in record.getMessage()
