"""Beam search over the wire: all spellings, and outputs that are those of the engine's own rules."""

from typing import Any

import pytest

from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.triton.test_contract import generate

PROMPT = "The three largest cities of France are"


@pytest.fixture(scope="module")
def beams(server: TritonServer) -> list[str]:
    found = generate(server, text_input=PROMPT, exclude_input_in_output=True, max_tokens=12, beam_width=4)
    assert len(set(found["text_output"])) == 4
    return list(found["text_output"])


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"beam_width": 4, "temperature": 1.0, "top_k": 1, "length_penalty": 1.0, "pad_id": 2}, 4),
        ({"beam_width": 4, "num_return_sequences": 2}, 2),
        ({"use_beam_search": True, "sampling_parameters": '{"best_of": 4, "n": 1}'}, 1),
        ({"sampling_parameters": '{"use_beam_search": true, "n": 4, "temperature": 0, "early_stopping": false}'}, 4),
    ],
)
def test_all_spellings_give_the_best_beams(
    server: TritonServer, beams: list[str], fields: dict[str, Any], count: int
) -> None:
    found = generate(server, text_input=PROMPT, exclude_input_in_output=True, max_tokens=12, **fields)
    texts = found["text_output"]
    assert ([texts] if isinstance(texts, str) else texts) == beams[:count]


def test_outputs_of_beams(server: TritonServer, beams: list[str]) -> None:
    found = generate(
        server,
        text_input=PROMPT,
        max_tokens=12,
        beam_width=4,
        return_finish_reason=True,
        return_cumulative_logprob=True,
        return_num_output_tokens=True,
        return_usage=True,
        return_perf_metrics=True,
    )
    assert found["text_output"] == [PROMPT + text for text in beams]
    assert found["finish_reason"] == ["length"] * 4
    assert found["cumulative_logprob"] == sorted(found["cumulative_logprob"], reverse=True)
    assert max(found["cumulative_logprob"]) < 0
    assert found["num_output_tokens"] == [12] * 4
    assert found["usage"] == [7, 48]
    assert found["total_draft_tokens"] == [0] * 4
    assert 0 < found["first_token_time_ns"][3] < found["last_token_time_ns"][3]


def test_the_client_gets_the_beams(server: TritonServer, beams: list[str]) -> None:
    with Client(server.grpc_url) as client:
        answer = client.generate(PROMPT, beam_width=4, max_tokens=12)
        best = client.generate(PROMPT, beam_width=4, n=1, max_tokens=12)
    assert [choice.text for choice in answer.choices] == beams
    assert [choice.text for choice in best.choices] == beams[:1]
    assert answer.usage.completion_tokens == 48
    with Client(f"http://{server.http_url}") as client:
        assert [choice.text for choice in client.generate(PROMPT, beam_width=4, max_tokens=12).choices] == beams


def test_a_deadline_cuts_the_beams_off(server: TritonServer) -> None:
    found = generate(
        server,
        text_input=PROMPT,
        max_tokens=2000,
        min_tokens=2000,
        beam_width=2,
        deadline_ms=400,
        return_finish_reason=True,
        return_num_output_tokens=True,
    )
    assert found["finish_reason"] == ["deadline"] * 2
    assert 1 <= found["num_output_tokens"][0] < 2000
