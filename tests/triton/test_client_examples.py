"""The examples in the client's docstrings match the answers of a real server."""

import asyncio
import doctest
import re
from pathlib import Path

import pytest

import inflight_client.asking
import inflight_client.async_client
import inflight_client.client
from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.triton.test_contract import Greedy


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


def test_the_example_for_tritonclient(server: TritonServer, greedy: Greedy, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "requests.md").read_text()
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "tritonclient" in code)
    exec(compile(example.replace("127.0.0.1:8001", server.grpc_url), "requests.md", "exec"), {})
    assert capsys.readouterr().out == greedy("The capital of France is", 32)
