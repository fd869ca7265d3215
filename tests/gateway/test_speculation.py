"""A server with drafts: the same answers, and everyone can see what the drafts were worth."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from inflight_client import Client, PerfMetrics
from inflight_client.load import Reading, load
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.triton.prometheus import Scrape, at_rest, scrape_when

COPYING = "red, green, blue, white, red, green, blue, white, red, green, blue,"
ASKED: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def client(drafting_server: TritonServer) -> Iterator[Client]:
    with Client(drafting_server.grpc_url, metrics_url=drafting_server.metrics_url) as client:
        yield client


def totals(perf: tuple[PerfMetrics, ...]) -> tuple[int, int]:
    return sum(each.total_draft_tokens for each in perf), sum(each.total_accepted_draft_tokens for each in perf)


def counted(found: Scrape) -> tuple[float, float]:
    names = ("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total")
    return found.get(names[0]), found.get(names[1])


def test_the_same_tokens_sooner_and_all_counts_agree(drafting_server: TritonServer, client: Client) -> None:
    before, read_before = scrape_when(drafting_server, at_rest), Reading(0.0, client.metrics(), "llm")
    with_drafts = client.generate(COPYING, return_perf_metrics=True, n=2, **ASKED)
    without = client.generate(COPYING, return_perf_metrics=True, num_speculative_tokens=0, **ASKED)
    assert [choice.token_ids for choice in with_drafts.choices] == [without.token_ids] * 2
    assert totals(without.perf) == (0, 0)
    assert without.perf[0].acceptance_rate == 0
    for perf in with_drafts.perf:
        assert 10 < perf.total_accepted_draft_tokens < 40
        assert perf.total_accepted_draft_tokens <= perf.total_draft_tokens
        assert perf.acceptance_rate == pytest.approx(perf.total_accepted_draft_tokens / perf.total_draft_tokens)
        assert 0 < perf.arrival_time_ns <= perf.first_scheduled_time_ns
        assert perf.first_scheduled_time_ns < perf.first_token_time_ns < perf.last_token_time_ns
    assert without.perf[0].kv_cache_reused_blocks == without.usage.prompt_tokens // 16

    after = scrape_when(drafting_server, at_rest)
    drafted, accepted = (now - then for now, then in zip(counted(after), counted(before), strict=True))
    assert (drafted, accepted) == totals(with_drafts.perf)
    places = after.by("spec_decode_num_accepted_tokens_per_pos_total", "position")
    assert sorted(places) == ["0", "1", "2", "3"]
    assert sum(places.values()) == after.get("spec_decode_num_accepted_tokens_total")
    assert after.get("computed_tokens_total", kind="draft") == after.get("spec_decode_num_draft_tokens_total")
    shown = load(read_before, Reading(2.0, client.metrics(), "llm"))
    assert (shown.drafted_tokens_per_second, shown.acceptance_rate) == (drafted / 2, accepted / drafted)


def test_a_clients_draft_is_followed_over_http_as_over_grpc(drafting_server: TritonServer, client: Client) -> None:
    prompt = "The capital of Austria is Vienna. The capital of"
    plain = client.generate(prompt, num_speculative_tokens=0, **ASKED)
    for url in (drafting_server.grpc_url, f"http://{drafting_server.http_url}"):
        with Client(url) as other:
            helped = other.generate(prompt, draft_input_ids=plain.token_ids, return_perf_metrics=True, **ASKED)
        assert helped.token_ids == plain.token_ids
        assert helped.perf[0].total_accepted_draft_tokens >= 24
    streamed = client.stream(prompt, draft_input_ids=plain.token_ids, return_perf_metrics=True, **ASKED)
    assert "".join(chunk.text for chunk in streamed) == plain.text
    assert streamed.perf[0].total_draft_tokens == helped.perf[0].total_draft_tokens


def test_the_gateway_takes_predictions(drafting_server: TritonServer) -> None:
    message = {"role": "user", "content": "Repeat exactly: red, green, blue, white, red, green, blue, white."}
    asked: Any = {"model": "llm", "messages": [message], "max_tokens": 40, "temperature": 0}
    with GatewayProcess(drafting_server.grpc_url) as gateway, gateway.openai() as openai:
        gateway.wait_for(["/health"], 30)
        plain = openai.chat.completions.create(**asked, extra_body={"num_speculative_tokens": 0})
        assert plain.usage.completion_tokens_details is None
        text = plain.choices[0].message.content
        for content in (text, [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]):
            predicted = openai.chat.completions.create(**asked, prediction={"type": "content", "content": content})
            assert predicted.choices[0].message.content == text
            details = predicted.usage.completion_tokens_details
            assert details.accepted_prediction_tokens >= 10
            assert details.rejected_prediction_tokens >= 0
        assert _streamed(openai, {**asked, "prediction": {"type": "content", "content": text}}) == details


def _streamed(openai: OpenAI, asked: Any) -> Any:
    *_, last = openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    return last.usage.completion_tokens_details
