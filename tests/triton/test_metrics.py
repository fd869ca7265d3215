"""/metrics before and after a known load adds up exactly."""

import json
from typing import Any

import httpx

from inflight.metric_families import FAMILIES
from scripts.launch.triton_server import TritonServer
from tests.triton.prometheus import Scrape, at_rest, scrape_when
from tests.triton.wire import ask, ask_all, together

PROMPTS = ["The sky is", "One two three four five six seven", "Tell me a story about a river and a house"]


class Load:
    """The increase of the metrics between two times at which no request runs."""

    def __init__(self, server: TritonServer) -> None:
        self._server = server
        self._before = scrape_when(server, at_rest)
        self._after: Scrape | None = None

    def wait(self, ended: int) -> None:
        """Wait until the metrics show that `ended` more requests have ended or were refused."""

        def reached(found: Scrape) -> bool:
            return at_rest(found) and self._count(found) - self._count(self._before) >= ended

        self._after = scrape_when(self._server, reached)

    @staticmethod
    def _count(found: Scrape) -> float:
        families = [("request_success_total", "finished_reason"), ("request_refused_total", "reason")]
        return sum(sum(found.by(name, label).values()) for name, label in families)

    def gain(self, name: str, **labels: str) -> float:
        assert self._after is not None
        return self._after.get(name, **labels) - self._before.get(name, **labels)

    def gains(self, name: str, label: str) -> dict[str, float]:
        """Return the increases by the value of a label, without those that are zero."""
        assert self._after is not None
        before = self._before.by(name, label)
        gains = {value: now - before[value] for value, now in self._after.by(name, label).items()}
        return {value: gain for value, gain in gains.items() if gain}


def test_every_metric_is_there(server: TritonServer) -> None:
    found = scrape_when(server, at_rest)
    names = {name for name, _ in found.values}
    for family in FAMILIES:
        # Those of drafts are there only where drafts are made.
        is_there = not family.name.startswith("inflight:spec_decode")
        assert ((f"{family.name}_bucket" if family.buckets else family.name) in names) == is_there
    for _, labels in found.values:
        assert {("model", "llm"), ("version", "1"), ("instance", "llm_0_0")} <= labels


def test_tokens_in_tokens_out_and_requests_by_reason(server: TritonServer, tokenizer: Any) -> None:
    load = Load(server)
    exact = json.dumps({"ignore_eos": True})
    good = [
        {"text_input": PROMPTS[i % 3], "stream": True, "max_tokens": 2 + i, "sampling_parameters": exact}
        for i in range(9)
    ]
    bad = [{"text_input": "", "max_tokens": 2}, {"text_input": "a", "temperature": -1.0}]
    answers = ask_all(server.grpc_url, good + bad)
    assert [answer.finish_reason for answer in answers[:9]] == ["length"] * 9
    load.wait(ended=11)

    tokens_in = sum(len(tokenizer(fields["text_input"])["input_ids"]) for fields in good)
    tokens_out = sum(fields["max_tokens"] for fields in good)
    assert load.gain("prompt_tokens_total") == tokens_in == load.gain("prefix_cache_queries_total")
    assert load.gain("generation_tokens_total") == tokens_out
    assert load.gains("request_success_total", "finished_reason") == {"length": 9}
    assert load.gains("request_refused_total", "reason") == {"invalid": 2}
    for name in ("request_prompt_tokens", "request_generation_tokens", "e2e_request_latency_seconds"):
        assert load.gain(f"{name}_count") == 9
    for name in ("time_to_first_token_seconds", "request_queue_time_seconds"):
        assert load.gain(f"{name}_count") == 9
    assert load.gain("request_prompt_tokens_sum") == tokens_in
    assert load.gain("request_generation_tokens_sum") == tokens_out

    computed = load.gains("computed_tokens_total", "kind")
    # The engine computes neither the last token of a request nor the tokens in the prefix cache.
    assert computed["decode"] == tokens_out - 9
    assert computed["prefill"] == tokens_in - load.gain("prefix_cache_hits_total")
    assert load.gain("iteration_tokens_total_sum") == sum(computed.values())
    steps = load.gain("iteration_tokens_total_count")
    assert steps == load.gain("step_duration_seconds_count") == load.gain("iteration_requests_count")
    assert load.gain("step_budget_tokens_total") == 512 * steps
    assert load.gain("padding_tokens_avoided_total") >= 0
    # At least one step had more than one request.
    assert load.gain("iteration_requests_sum") > steps

    gaps = load.gains("inter_token_latency_seconds_bucket", "le")
    assert gaps["+Inf"] == load.gain("inter_token_latency_seconds_count") == tokens_out - 9
    by_bound = [gaps[bound] for bound in sorted(gaps, key=float)]
    assert by_bound == sorted(by_bound)
    assert load.gain("inter_token_latency_seconds_sum") <= load.gain("e2e_request_latency_seconds_sum")


def test_stop_strings_and_cancellations_count_as_what_the_client_saw(server: TritonServer, tokenizer: Any) -> None:
    load = Load(server)
    body = {"text_input": "Count: one, two,", "max_tokens": 64, "exclude_input_in_output": True}
    wanted = {
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "stop_words": ["five"],
    }
    reply = httpx.post(f"http://{server.http_url}/v2/models/llm/generate", json={**body, **wanted}, timeout=60).json()
    assert reply["finish_reason"] == "stop"
    load.wait(ended=1)
    assert load.gain("generation_tokens_total") == reply["num_output_tokens"]
    assert load.gain("prompt_tokens_total") == reply["num_input_tokens"]
    assert load.gains("request_success_total", "finished_reason") == {"stop": 1}

    long = {"text_input": "Write a long story.", "stream": True, "max_tokens": 1500}
    together(server.grpc_url, lambda client: [ask(client, long, cancel_after=3) for _ in range(3)])
    load.wait(ended=4)
    assert load.gains("request_success_total", "finished_reason") == {"stop": 1, "cancelled": 3}


def test_the_cache_is_shown_as_tensorrt_llm_shows_it(server: TritonServer) -> None:
    found = scrape_when(server, at_rest)
    blocks = {
        kind: found.get("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind)
        for kind in ("max", "used", "free", "tokens_per", "fraction")
    }
    assert blocks == {"max": 6144 / 16, "used": 0, "free": 6144 / 16, "tokens_per": 16, "fraction": 0}
    assert found.get("kv_cache_usage_perc") == 0
