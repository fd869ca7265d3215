"""Loading and unloading models under explicit model control leaves nothing behind in the server."""

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from inflight_cli.agent_check import state_of
from inflight_cli.doctor import Level, check
from inflight_client import AsyncClient, Client, DrainState, InvalidRequest, RetryPolicy
from scripts.launch.triton_server import SHARED_MEMORY, TritonServer
from scripts.reference.tiny_models import SERVED, save_model
from tests.eventually import eventually
from tests.running_server import running_server
from tests.triton.conftest import add_llm
from tests.triton.prometheus import scrape, scrape_when
from tests.unit.traces import check_trace, read_trace

# Each round starts new processes that import torch, which takes most of the time. So it loads both models in parallel.
ROUNDS = 2
MODELS = ["llm", "twin"]


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, trace_file: Path) -> Iterator[TritonServer]:
    """A server that has loaded no models. Those in its repository are tiny and have no tokenizer."""
    folder = tmp_path_factory.mktemp("llama")
    save_model(SERVED["llama"].config, folder)
    repository = tmp_path_factory.mktemp("repository")
    parameters = {"model": str(folder), "dtype": "float32", "kv_cache_tokens": "1024"}
    add_llm(repository, "llm", "config.pbtxt", {**parameters, "trace_file": str(trace_file)})
    add_llm(repository, "twin", "config.pbtxt", parameters)
    with running_server(repository, [], ["--model-control-mode=explicit"]) as running:
        yield running


def post(server: TritonServer, path: str, body: object = None) -> httpx.Response:
    reply = httpx.post(f"http://{server.http_url}{path}", json=body or {}, headers=server.operator_headers, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply


def load_use_and_unload(server: TritonServer, model: str) -> None:
    post(server, f"/v2/repository/models/{model}/load")
    for _ in range(3):
        post(server, f"/v2/models/{model}/generate", {"input_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True})
    # The counter starts again from 0 after each load.
    scrape_when(server, lambda found: found.get("generation_tokens_total", model=model) == 12)
    post(server, f"/v2/repository/models/{model}/unload")


def wait_until_gone(server: TritonServer) -> None:
    """Return when the processes and the metrics of unloaded models are gone."""
    end = time.monotonic() + 30
    while scrape(server).values or processes(server) != [server.pid]:
        assert time.monotonic() < end, "they do not go"
        time.sleep(0.05)


def regions() -> set[str]:
    """The shared-memory regions of the servers of this test run."""
    return {region.name for region in SHARED_MEMORY.glob(f"inflight_{os.getpid()}_*")}


def processes(server: TritonServer) -> list[int]:
    """The ids of the server and its child processes, found by their process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # The process has ended.
        if int(group) == server.pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def num_threads(server: TritonServer) -> int:
    return len(list(Path(f"/proc/{server.pid}/task").iterdir()))


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.slow
def test_loading_and_unloading_leaves_nothing_behind_but_the_trace(server: TritonServer, trace_file: Path) -> None:
    before = regions()
    threads, memory = [], []
    for _ in range(ROUNDS):
        with ThreadPoolExecutor() as pool:
            list(pool.map(load_use_and_unload, [server] * len(MODELS), MODELS))
        wait_until_gone(server)
        assert regions() == before
        threads.append(num_threads(server))
        memory.append(resident_mib(server.pid))
        trace = read_trace(trace_file)
        check_trace(trace, computed_tokens=3 * (3 + 3))
        assert [span.args["output_tokens"] for span in trace.requests.values()] == [4] * 3
    # The size of gRPC's own thread pool varies by one or two.
    assert threads[-1] - threads[0] < 3, threads
    assert memory[-1] - memory[0] < 8, memory


async def haproxy_state(server: TritonServer) -> str:
    async with AsyncClient(server.grpc_url, metrics_url=server.metrics_url) as client:
        return await state_of(client, "llm")


def test_a_model_that_drains_finishes_what_it_has(server: TritonServer) -> None:
    post(server, "/v2/repository/models/llm/load")
    with Client(server.grpc_url, retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(InvalidRequest, match="operator_key is not the OPERATOR_KEY"):
            client.drain("wrong")
        assert client.is_serving()
        assert asyncio.run(haproxy_state(server)) == "up ready 100%"
        with client.stream([5, 6, 7], max_tokens=250, n=16, ignore_eos=True, return_token_ids=True) as stream:
            assert eventually(lambda: len(client.unfinished_requests()) == 1)
            assert client.drain(server.operator_key) == DrainState(1, takes_requests=True)
            assert not client.is_serving()
            # Load balancers may not know yet.
            assert client.generate([5, 6, 7], max_tokens=1).usage.completion_tokens == 1
            assert stream.completion().usage.completion_tokens == 16 * 250
    post(server, "/v2/repository/models/llm/unload")
    wait_until_gone(server)


def test_the_doctor_finds_no_fault_in_a_model_without_a_tokenizer(server: TritonServer) -> None:
    post(server, "/v2/repository/models/llm/load")
    with Client(server.grpc_url, metrics_url=server.metrics_url) as client:
        found = {finding.subject: finding.level for finding in check(client, server.grpc_url, "llm")}
    assert found["answer"] is Level.OK
    post(server, "/v2/repository/models/llm/unload")
    wait_until_gone(server)


def test_a_server_that_does_not_ask_the_model_for_its_inputs_says_what_to_do(server: TritonServer) -> None:
    log: list[str] = []
    # One of the two models: each would import torch.
    arguments = ["--disable-auto-complete-config", "--exit-on-error=false"]
    arguments += ["--model-control-mode=explicit", "--load-model=llm"]
    with TritonServer(server.repository, arguments=arguments, log=log.append) as strict:
        strict.wait_for(["/v2/health/live"], 60)
        assert eventually(lambda: "start tritonserver without --disable-auto-complete-config" in "".join(log), 60)
        strict.kill()
