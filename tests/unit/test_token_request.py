"""How a request of a client of TensorRT-LLM's model `tensorrt_llm` is read."""

import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inflight import InvalidRequest

Parse = Callable[..., Any]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Parse:
    """Reads a request with these tensors, without the batch dimension, and these parameters."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.parse import parse
    from serving.tensorrt_llm.token_request import TokenRequest

    def of(
        text: str = "", parameters: dict[str, Any] | None = None, *, exclude_input: bool = False, **tensors: Any
    ) -> Any:
        arrays = {"input_ids": [1, 2, 3], "request_output_len": 4} | tensors
        given = [
            SimpleNamespace(name=lambda name=name: name, as_numpy=lambda value=value: np.array(value)[np.newaxis])
            for name, value in arrays.items()
        ]
        request = SimpleNamespace(
            inputs=lambda: given, parameters=lambda: json.dumps(parameters or {}), timeout=int, request_id=str
        )
        return parse(TokenRequest(request, lambda ids: text, exclude_input=exclude_input), 100, 1000)

    return of


def test_empty_lists_ask_for_nothing(parse: Parse) -> None:
    """As the ensemble sends them where a client gives no words."""
    empty = np.empty((2, 0), np.int32)
    parsed = parse(stop_words_list=empty, bad_words_list=empty, embedding_bias=np.empty(0, np.float32))
    assert (parsed.params.stop, parsed.params.stop_token_ids, parsed.params.bad_words_ids) == ((), (), ())
    assert not parsed.params.logit_bias


def test_a_word_of_several_tokens_stops_by_its_text(parse: Parse) -> None:
    words = [[5, 6, 7], [1, 3, -1]]
    parsed = parse("six seven", stop_words_list=words, bad_words_list=words)
    assert (parsed.params.stop, parsed.params.stop_token_ids) == (("six seven",), (5,))
    assert parsed.params.bad_words_ids == ((5,), (6, 7))
    with pytest.raises(InvalidRequest, match=r"stop_words_list has the word \[6, 7\], which has no text"):
        parse("", stop_words_list=words)


@pytest.mark.parametrize(
    ("tensors", "top_k", "top_p"),
    [
        ({}, 1, None),
        ({"temperature": 0.7}, 1, None),
        ({"runtime_top_k": 0, "runtime_top_p": 0.0}, 1, None),
        ({"runtime_top_k": 50, "runtime_top_p": 0.0}, 50, None),
        ({"runtime_top_k": 0, "runtime_top_p": 0.5}, None, 0.5),
        ({"runtime_top_k": 50, "runtime_top_p": 0.5}, 50, 0.5),
    ],
)
def test_a_number_of_zero_is_none_and_without_any_the_likeliest_token_is_taken(
    parse: Parse, tensors: dict[str, float], top_k: int | None, top_p: float | None
) -> None:
    params = parse(**tensors).params
    assert (params.top_k, params.top_p) == (top_k, top_p)


def test_a_choice_of_tokens_can_be_a_parameter(parse: Parse) -> None:
    assert parse(parameters={"top_p": 0.5}).params.top_p == 0.5
    assert parse(parameters={"top_p": 0.5}).params.top_k is None
    assert parse(parameters={"top_k": 5}, runtime_top_k=7).params.top_k == 7


def test_lists_are_refused_before_they_are_read(parse: Parse) -> None:
    with pytest.raises(InvalidRequest, match="stop_words_list has 4097 tokens; it must have at most 4096"):
        parse(stop_words_list=np.ones((2, 4097), np.int32))
    with pytest.raises(InvalidRequest, match="embedding_bias has 5000 numbers other than 0; it must have at most 1024"):
        parse(embedding_bias=np.ones(5000, np.float32))


def test_embeddings_are_not_a_part_of_outputs(parse: Parse) -> None:
    table = np.zeros((2, 4), np.float16)
    assert parse(prompt_embedding_table=table, exclude_input_in_output=True).embeds is not None
    assert parse(prompt_embedding_table=table, streaming=True).embeds is not None
    with pytest.raises(InvalidRequest, match="exclude_input_in_output is false; it must be true with prompt_embedding"):
        parse(prompt_embedding_table=table)


def test_the_prompt_is_a_part_of_whole_outputs_unless_it_is_excluded(parse: Parse) -> None:
    assert parse().outputs.prompt == "ids"
    assert not parse(exclude_input_in_output=True).outputs.prompt
    assert not parse(exclude_input=True).outputs.prompt
    assert parse(exclude_input=True, exclude_input_in_output=False).outputs.prompt == "ids"
    streamed = parse(streaming=True, exclude_input_in_output=False)
    assert streamed.stream
    assert not streamed.outputs.prompt


def test_our_own_fields_come_as_parameters(parse: Parse) -> None:
    parsed = parse(parameters={"deadline_ms": 50, "tenant": "a"}, num_return_sequences=2, end_id=7)
    assert (parsed.options.deadline_ms, parsed.options.tenant, parsed.num_samples) == (50, "a", 2)
    assert parsed.params.stop_token_ids == (7,)


def test_what_does_not_exist_must_ask_for_nothing(parse: Parse) -> None:
    assert parse(return_generation_logits=False, lora_weights=np.empty((0, 0), np.float16)).prompt == (1, 2, 3)
    with pytest.raises(InvalidRequest, match="lora_task_id is given; there is no such thing here"):
        parse(lora_task_id=0)
