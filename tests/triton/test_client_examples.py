"""The examples in the client's docstrings match the answers of a real server."""

import asyncio
import doctest

import pytest

import inflight_client.asking
import inflight_client.async_client
import inflight_client.client
from inflight_client import Client
from scripts.launch.triton_server import TritonServer


@pytest.mark.parametrize("module", [inflight_client.client, inflight_client.async_client, inflight_client.asking])
def test_examples(server: TritonServer, module: object) -> None:
    runner = doctest.DocTestRunner(verbose=False)
    with Client(server.grpc_url, metrics_url=server.metrics_url) as client:
        for test in doctest.DocTestFinder().find(module, extraglobs={"client": client, "asyncio": asyncio}):
            for example in test.examples:
                example.source = example.source.replace("127.0.0.1:8001", server.grpc_url)
            runner.run(test)
    assert runner.tries
    assert runner.failures == 0
