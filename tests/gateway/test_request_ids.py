"""Each request has a name, which the answer's headers and the server's fields tell."""

import json

import httpx
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from tests.gateway.gateway_process import GatewayProcess


def received_name(client: OpenAI, headers: dict[str, str]) -> tuple[str | None, str]:
    """The name in the answer's header, and the one that the server received."""
    answer = client.completions.with_raw_response.create(model="llm", prompt="!request", extra_headers=headers)
    parameters = json.loads(json.loads(answer.parse().choices[0].text)["sampling_parameters"])
    return answer.request_id, parameters["client_request_id"]


def test_a_request_keeps_the_name_that_the_client_gave(client: OpenAI) -> None:
    assert received_name(client, {"X-Request-Id": "order-17/3"}) == ("order-17/3", "order-17/3")


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129])
def test_without_a_usable_name_it_gets_one(client: OpenAI, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    names = {received_name(client, headers) for _ in range(2)}
    assert len(names) == 2
    for answered, received in names:
        assert answered == received != given


def test_refusals_and_other_pages_have_names_too(client: OpenAI, gateway: GatewayProcess) -> None:
    with pytest.raises(BadRequestError) as raised:
        client.completions.create(model="llm", prompt="a", max_tokens=-1, extra_headers={"X-Request-Id": "bad-1"})
    assert raised.value.request_id == "bad-1"
    assert httpx.get(f"{gateway.url}/health").headers["x-request-id"]


def test_anthropics_client_finds_the_name(gateway: GatewayProcess) -> None:
    with Anthropic(base_url=gateway.url, api_key="none") as client:
        answer = client.messages.create(model="llm", max_tokens=3, messages=[{"role": "user", "content": "Hi"}])
    assert answer._request_id
