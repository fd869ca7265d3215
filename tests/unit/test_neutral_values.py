"""What clients of other servers send where they want nothing."""

import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inflight import InvalidRequest
from inflight.sampling_params import ROOM_FOR_ALL

Parse = Callable[..., Any]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Parse:
    """Reads a request with these parameters. `exclude_input` is what the server does where the request does not say."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.parse import parse

    def of(*, exclude_input: bool = False, **parameters: Any) -> Any:
        written = json.dumps({"text_input": "a", **parameters})
        request = SimpleNamespace(inputs=list, parameters=lambda: written, timeout=int, request_id=str)
        return parse(request, 100, 1000, exclude_input=exclude_input)

    return of


@pytest.mark.parametrize("name", ["stop", "stop_words", "bad_words"])
@pytest.mark.parametrize(("given", "read"), [("", ()), ([""], ()), (["c", ""], ("c",)), (["", "a b", ""], ("a b",))])
def test_empty_words_do_not_count(parse: Parse, name: str, given: Any, read: tuple[str, ...]) -> None:
    params = parse(**{name: given}).params
    assert (params.bad_words if name == "bad_words" else params.stop) == read


@pytest.mark.parametrize("given", [0, 0.0, "0", "0.0"])
def test_no_probability_at_all_leaves_the_likeliest_token(parse: Parse, given: Any) -> None:
    params = parse(top_p=given, top_k=50, temperature=1.5).params
    assert (params.top_p, params.top_k, params.temperature) == (1, 1, 1.5)
    with pytest.raises(InvalidRequest, match=r"top_p is -0\.1"):
        parse(top_p=-0.1)


def test_who_does_not_say_gets_the_prompt_back_as_the_server_is_configured(parse: Parse) -> None:
    assert parse().prepend_prompt
    assert not parse(exclude_input=True).prepend_prompt
    assert parse(exclude_input=True, exclude_input_in_output=False).prepend_prompt
    assert parse(exclude_input=True, stream=True).stream


def test_a_seed_of_minus_one_is_a_random_one(parse: Parse) -> None:
    assert parse(seed=-1).params.seed is None
    assert parse(random_seed="7").params.seed == 7
    with pytest.raises(InvalidRequest, match="seed is -2"):
        parse(seed=-2)


def test_logprobs_of_false_are_none(parse: Parse) -> None:
    asked = parse(logprobs=False, return_logprobs=True)
    assert asked.params.logprobs is None
    assert not asked.outputs.has_logprobs
    assert parse(logprobs=False, return_cumulative_logprob=True).params.logprobs == 0
    assert parse(logprobs="2", return_cumulative_logprob=True).params.logprobs == 2
    with pytest.raises(InvalidRequest, match="logprobs is True; it must be a whole number"):
        parse(logprobs=True)


@pytest.mark.parametrize("name", ["tenant", "cache_salt", "lora_name", "request_class", "client_request_id"])
def test_an_empty_name_is_none(parse: Parse, name: str) -> None:
    assert getattr(parse(**{name: ""}).options, name) == ""


def test_an_empty_guide_guides_nothing(parse: Parse) -> None:
    assert parse(guided_decoding_guide_type="", guided_decoding_guide="").params.structured_outputs is None
    with pytest.raises(InvalidRequest, match="guided_decoding_guide_type is ''"):
        parse(guided_decoding_guide_type="", guided_decoding_guide="a")


def test_no_rows_of_no_table(parse: Parse) -> None:
    assert parse(prompt_vocab_size=0).embeds is None


def test_null_as_max_tokens_is_all_that_there_is_room_for(parse: Parse) -> None:
    """In vLLM's parameters. Elsewhere, null is a field that is not given."""
    assert parse(sampling_parameters='{"max_tokens": null}').params.max_tokens == ROOM_FOR_ALL
    assert parse(sampling_parameters="{}").params.max_tokens is None


def test_several_prompts_to_embed_are_refused_as_such(parse: Parse) -> None:
    for given in (["a", "b"], [[1], [2]]):
        with pytest.raises(InvalidRequest, match="input of embedding_request is a list of prompts; a request has one"):
            parse(text_input="", embedding_request=json.dumps({"input": given}))
