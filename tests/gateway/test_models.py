"""GET /v1/models, as Anthropic's client reads it; and requests that name no model."""

import time
from typing import Any

import httpx
import pytest
from anthropic import Anthropic

from tests.gateway.gateway_process import GatewayProcess


def test_the_models_are_listed(gateway: GatewayProcess) -> None:
    client = Anthropic(base_url=gateway.url, api_key="none", max_retries=0)
    (model,) = client.models.list(limit=20)
    assert (model.id, model.display_name, model.type) == ("llm", "llm", "model")
    assert abs(time.time() - model.created_at.timestamp()) < 3600
    assert client.models.retrieve("llm") == model


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "one"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one"}]}),
        ("/v1/responses", {"input": "one"}),
        ("/v1/embeddings", {"input": "one"}),
        ("/v1/score", {"queries": "one", "documents": "two"}),
        ("/v1/rerank", {"query": "one", "documents": ["two"]}),
        ("/classify", {"input": "one"}),
    ],
)
def test_a_request_may_name_no_model(gateway: GatewayProcess, path: str, body: dict[str, Any]) -> None:
    """As in vLLM. The answer names it."""
    for named in ({}, {"model": None}):
        answer = httpx.post(f"{gateway.url}{path}", json={**body, **named}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "llm"
