"""A server that disappears silently: users get an error, or the answer of another server."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from scripts.launch.triton_server import TritonServer
from tests.client.link import link
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess

SECONDS = 30
"""Far less than the gateway's own bounds."""


def test_running_requests_get_an_error(server: TritonServer) -> None:
    with (
        link(server.grpc_port) as severable,
        GatewayProcess(severable.address) as gateway,
        ThreadPoolExecutor() as pool,
    ):
        gateway.wait_for(["/health"], 30)
        with gateway.openai() as client:
            stream = client.completions.create(model="llm", prompt="!gap 10 !forever", max_tokens=10**6, stream=True)
            assert next(stream).choices[0].text == "tick "
            rest = pool.submit(list, stream)
            waiting = pool.submit(client.completions.create, model="llm", prompt="!gap 60000 one")
            assert not eventually(waiting.done, 1)
            severable.sever()
            with pytest.raises(openai.APIError, match="unreachable"):
                rest.result(SECONDS)
            with pytest.raises(openai.InternalServerError, match="unreachable") as failure:
                waiting.result(SECONDS)
            assert failure.value.status_code == 503


def test_a_prompt_is_computed_by_the_server_that_is_left(server: TritonServer) -> None:
    with link(server.grpc_port) as severable:
        arguments = ["--prefill-server", severable.address, "--prefill-min-tokens", "1"]
        with GatewayProcess(server.grpc_url, *arguments) as gateway, ThreadPoolExecutor() as pool:
            gateway.wait_for(["/health"], 30)
            with gateway.openai() as client:
                waiting = pool.submit(client.completions.create, model="llm", prompt="!gap 2000 one two")
                assert not eventually(waiting.done, 1)
                severable.sever()
                assert waiting.result(SECONDS).choices[0].text == "one two "
            assert 'prefills_total{outcome="failed"} 1.0' in httpx.get(f"{gateway.url}/metrics").text
