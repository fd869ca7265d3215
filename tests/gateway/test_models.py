"""GET /v1/models, as Anthropic's client reads it."""

import time

from anthropic import Anthropic

from tests.gateway.gateway_process import GatewayProcess


def test_the_models_are_listed(gateway: GatewayProcess) -> None:
    client = Anthropic(base_url=gateway.url, api_key="none", max_retries=0)
    (model,) = client.models.list(limit=20)
    assert (model.id, model.display_name, model.type) == ("llm", "llm", "model")
    assert abs(time.time() - model.created_at.timestamp()) < 3600
    assert client.models.retrieve("llm") == model
