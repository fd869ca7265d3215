"""/metrics before and after a known load adds up exactly."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from inflight.metric_families.families import FAMILIES, VLLM_CACHE_INFO, VLLM_FAMILIES
from inflight_client.metrics import parse_metrics
from scripts.launch.triton_server import TritonServer
from tests.triton.prometheus import Scrape, at_rest, scrape, scrape_when
from tests.triton.wire import ask, ask_all, together

NEED_SETTINGS = (
    "inflight:length_rank_correlation",
    *("inflight:spec_decode", "inflight:num_requests_waiting_by_priority", "inflight:auto_tune"),
    "inflight:lora_",
    *("inflight:tenant_", "inflight:cost_per_thousand_tokens"),
    *("inflight:disk_cache", "inflight:kv_transfer"),
)
"""Metrics that exist only with settings that this server does not have."""
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
        is_there = not family.name.startswith(NEED_SETTINGS)
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


# What an endpoint picker of Kubernetes' Gateway API Inference Extension reads of each kind of server: a name, the
# labels that a series must have, and what it calls it.
PICKED = {
    "triton-tensorrt-llm": {
        "queued": "nv_trt_llm_request_metrics{request_type=waiting}",
        "running": "nv_trt_llm_request_metrics{request_type=scheduled}",
        "KV use": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        "block size": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
        "blocks": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
    },
    "vllm": {
        "queued": "vllm:num_requests_waiting",
        "running": "vllm:num_requests_running",
        "KV use": "vllm:kv_cache_usage_perc",
    },
}


def picked(text: str, kind: str) -> dict[str, float]:
    """What a picker reads from /metrics. A gauge must have exactly one series, as pickers do not add several."""
    found = {}
    for what, spec in PICKED[kind].items():
        match = re.fullmatch(r"([^{]+)(?:{(\w+)=(\w+)})?", spec)
        assert match is not None
        name, label, value = match.groups()
        assert f"# TYPE {name} gauge" in text
        (series,) = parse_metrics(text).select(name, **({label: value} if label else {}))
        found[what] = series.value
    return found


@pytest.mark.parametrize("kind", PICKED)
def test_endpoint_pickers_find_what_they_read(server: TritonServer, kind: str) -> None:
    scrape_when(server, at_rest)
    blocks = {"block size": 16, "blocks": 6144 / 16} if kind == "triton-tensorrt-llm" else {}
    assert picked(httpx.get(server.metrics_url).text, kind) == {"queued": 0, "running": 0, "KV use": 0, **blocks}

    def loads() -> list[float]:
        found = picked(httpx.get(server.metrics_url).text, kind)
        assert 0 <= found["KV use"] <= 1
        return [found["queued"], found["running"], found["KV use"]]

    seen: list[list[float]] = []

    async def watch() -> None:
        while not any(running and use for _, running, use in seen):
            seen.append(await asyncio.to_thread(loads))

    long = {"text_input": "Write a long story.", "stream": True, "max_tokens": 64}
    together(server.grpc_url, lambda client: [watch(), *(ask(client, long) for _ in range(3))])
    assert max(running for _, running, _ in seen) <= 3


def test_what_routers_read_is_fresher_than_the_rest(server: TritonServer) -> None:
    """Pickers take metrics that are older than 200 ms for those of a full server."""

    async def is_seen_early(updated: float) -> bool:
        """Whether a request shows before all metrics are updated again."""
        while not (found := await asyncio.to_thread(scrape, server)).get("num_requests_running"):
            pass
        return found.get("last_update_time_seconds") == updated

    long = {"text_input": "Write a long story.", "stream": True, "max_tokens": 32}
    for _ in range(20):
        updated = scrape_when(server, at_rest).get("last_update_time_seconds")
        early, _ = together(server.grpc_url, lambda client, at=updated: [is_seen_early(at), ask(client, long)])
        if early:
            return
    raise AssertionError("the number of running requests never changed between two updates of the others")


def test_metrics_have_vllms_names_and_labels_too(server: TritonServer) -> None:
    scrape_when(server, at_rest)
    samples = parse_metrics(httpx.get(server.metrics_url).text).samples
    by_name = {sample.name: sample for sample in samples}
    for family in VLLM_FAMILIES:
        name = f"{family.name}_bucket" if family.buckets else family.name
        if not name.startswith("vllm:spec_decode"):
            assert {"model_name": "llm", "engine": "0"}.items() <= by_name[name].labels.items()
    for name in ("prompt_tokens_total", "time_to_first_token_seconds_count", "iteration_tokens_total_count"):
        assert by_name[f"vllm:{name}"].value == by_name[f"inflight:{name}"].value > 0
    info = by_name[VLLM_CACHE_INFO]
    assert info.value == 1
    assert {"block_size": "16", "num_gpu_blocks": "384"}.items() <= info.labels.items()
