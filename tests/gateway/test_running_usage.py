"""vLLM's extension of `stream_options`, `continuous_usage_stats`, which load generators send."""

import json

import httpx
import pytest

from tests.gateway.gateway_process import GatewayProcess


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "one two three"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one two three"}]}),
    ],
)
def test_each_piece_has_the_count_so_far(gateway: GatewayProcess, path: str, prompt: dict[str, object]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "llm", "stream": True, "stream_options": options, **prompt}
    lines = httpx.post(gateway.url + path, json=body, timeout=30).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 3)
