"""The gateway answers generated requests as its OpenAPI page says."""

import copy
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from inflight_gateway.app import create_app
from inflight_gateway.settings import Settings
from tests.gateway.gateway_process import GatewayProcess

APP = create_app(
    Settings(
        server="127.0.0.1:8001",
        metrics_urls=["http://127.0.0.1:8002/metrics"],
        balance="prefix",
        model="llm",
        served_model_name="llm",
        keys=None,
        max_concurrent_requests=512,
        max_concurrent_samples=2048,
        max_body_bytes=2**22,
        max_total_body_bytes=2**26,
        request_timeout=60,
    )
)


def forget_bounds_of_messages(page: dict[str, Any]) -> None:
    """Otherwise some requests would be larger than any body may be. test_messages.py tests these bounds."""

    def forget(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("maxItems", 0) >= 4096:
                del node["maxItems"]
            for each in node.values():
                forget(each)
        elif isinstance(node, list):
            for each in node:
                forget(each)

    for name in ("MessagesRequest", "CountTokensRequest", "UserMessage", "AssistantMessage", "ToolResultBlock"):
        forget(page["components"]["schemas"][name])


def forget_bound_of_inputs(page: dict[str, Any]) -> None:
    """Otherwise some requests would have as many inputs as possible, which takes seconds. Another test does that."""
    for form in page["components"]["schemas"]["EmbeddingRequest"]["properties"]["input"]["oneOf"]:
        form.pop("maxItems", None)


PAGE = copy.deepcopy(APP.openapi())
REQUESTS = (
    "CompletionRequest",
    "ChatRequest",
    "ResponsesRequest",
    "MessagesRequest",
    "CountTokensRequest",
    "EmbeddingRequest",
    "TokenizeText",
    "TokenizeChat",
    "DetokenizeRequest",
)
for request in REQUESTS:
    fields = PAGE["components"]["schemas"][request]["properties"]
    # Otherwise nearly all requests would fail because of the model's name.
    fields["model"] = {"const": "llm"} if "anyOf" not in fields["model"] else {"enum": [None, "llm"]}
    # The echo model always gives one answer.
    fields.pop("n", None)
forget_bound_of_inputs(PAGE)
forget_bounds_of_messages(PAGE)
schema = schemathesis.openapi.from_dict(PAGE)


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: schemathesis.Case, gateway: GatewayProcess) -> None:
    # OpenAPI cannot express that a field requires another one, such as top_logprobs and logprobs.
    case.call_and_validate(base_url=gateway.url, excluded_checks=[positive_data_acceptance])


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
        *("/v1/embeddings", "/v1/score", "/v1/rerank", "/classify"),
    ],
)
def test_errors_are_documented(gateway: GatewayProcess, path: str) -> None:
    responses = httpx.get(f"{gateway.url}/openapi.json").json()["paths"][path]["post"]["responses"]
    assert {"400", "401", "404", "413", "429", "500", "503", "504"} <= responses.keys()
    assert "422" not in responses
    for status, response in responses.items():
        if status != "200":
            form = "ErrorDocument" if path == "/v1/messages" else "Error"
            assert response["content"]["application/json"]["schema"]["$ref"].endswith(f"/{form}")
    generates = path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    streams = {"text/event-stream"} if generates else set()
    assert responses["200"]["content"].keys() == {"application/json"} | streams
