"""Cancelled requests leave the engine at once, whether they run or wait, and their blocks become free."""

import asyncio
import queue
import uuid
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aio

from inflight_client import AsyncClient
from load_tests.tensors import tensors
from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually
from tests.triton.prometheus import Scrape, at_rest, scrape, scrape_when
from tests.triton.wire import Answer, ask, one, together

LONG = {"text_input": "A very long story:", "stream": True, "max_tokens": 1500, "temperature": 0.0}


def wait_until_idle(server: TritonServer, seconds: float) -> None:
    """Return when no request runs or waits and no block is in use. Fails after `seconds`."""
    scrape_when(server, lambda found: at_rest(found) and found.get("kv_cache_usage_perc") == 0, seconds)


def test_running_requests_end_when_cancelled(server: TritonServer) -> None:
    """Four requests of 1,500 tokens are cancelled early, and the engine stops computing them."""
    answers = together(server.grpc_url, lambda client: [ask(client, LONG, cancel_after=3) for _ in range(4)])
    assert [answer.finish_reason for answer in answers] == ["given up"] * 4
    wait_until_idle(server, 25)


def test_waiting_requests_end_when_cancelled(server: TritonServer) -> None:
    """The cache has room for four such requests. The others are cancelled while they wait."""

    def make(client):  # type: ignore[no-untyped-def]
        async def given_up_while_waiting() -> Answer:
            task = asyncio.create_task(ask(client, LONG))
            await ask(client, {"text_input": "One two", "max_tokens": 1})
            task.cancel()
            return Answer(finish_reason="given up")

        return [given_up_while_waiting() for _ in range(80)]

    together(server.grpc_url, make)
    wait_until_idle(server, 25)


def test_others_go_on(server: TritonServer) -> None:
    alone = one(server.grpc_url, text_input="Blue is", stream=True, max_tokens=30, temperature=0.0)

    def make(client):  # type: ignore[no-untyped-def]
        cancelled = [ask(client, LONG, cancel_after=n) for n in range(8)]
        return [ask(client, {"text_input": "Blue is", "stream": True, "max_tokens": 30}), *cancelled]

    survivor, *_ = together(server.grpc_url, make)
    assert survivor.text == alone.text


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_answer_that_is_not_streamed_is_not_finished_for_nobody(server: TritonServer, protocol: str) -> None:
    """Over HTTP, Triton notices a disconnect only when it writes, and this answer is written at its end."""
    url = server.grpc_url if protocol == "grpc" else f"http://{server.http_url}"
    before = num_cancelled(scrape(server))

    async def give_up() -> None:
        async with AsyncClient(url) as client:
            answer = client.generate("A very long story:", max_tokens=1500, temperature=0, ignore_eos=True)
            task = asyncio.create_task(answer)
            while [request.running for request in await client.unfinished_requests()] != [True]:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(give_up())
    assert num_cancelled(scrape_when(server, at_rest)) == before + 1


def num_cancelled(found: Scrape) -> float:
    return found.by("request_success_total", "finished_reason").get("cancelled", 0.0)


def leave_completion(server: TritonServer, inputs: list[Any], count: int) -> list[str]:
    """Send `count` requests to `completion` and cancel them when all are running.

    Returns their errors after the engine has become empty.
    """
    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # At rest, as the gauges of an earlier test could show just as many running requests.
    before = num_cancelled(scrape_when(server, at_rest))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        calls = [
            client.async_infer("completion", inputs, lambda result, error: outcomes.put(error)) for _ in range(count)
        ]
        assert eventually(lambda: scrape(server).get("num_requests_running") == count, seconds=20)
        for call in calls:
            call.cancel()
        errors = [outcomes.get(timeout=10) for _ in calls]
    found = scrape_when(server, at_rest)
    assert num_cancelled(found) == before + count
    return [error.message() for error in errors]


def test_a_client_that_leaves_completion_frees_the_engine(server: TritonServer) -> None:
    inputs = tensors({name: value for name, value in LONG.items() if name != "stream"})
    assert leave_completion(server, inputs, 3) == ["Locally cancelled by application!"] * 3


def test_a_key_that_nobody_has_cancels_nothing(server: TritonServer) -> None:
    def make(client):  # type: ignore[no-untyped-def]
        fields = {"text_input": "Blue is", "stream": True, "max_tokens": 30}
        strangers = [ask(client, {}, parameters={"cancel": key}) for key in ("", "0" * 32, 1, True)]
        return [ask(client, fields, parameters={"cancel_key": uuid.uuid4().hex}), *strangers]

    alone = one(server.grpc_url, text_input="Blue is", stream=True, max_tokens=30)
    survivor, *strangers = together(server.grpc_url, make)
    assert survivor.text == alone.text
    assert [(stranger.pieces, stranger.error) for stranger in strangers] == [([], None)] * 4


@pytest.mark.parametrize("key", ["mine", "0" * 31, "A" * 32, 1, True])
def test_a_key_that_others_may_guess_is_refused(server: TritonServer, key: object) -> None:
    async def send(client: aio.InferenceServerClient) -> Answer:
        return await ask(client, {"text_input": "Blue is"}, parameters={"cancel_key": key})

    (answer,) = together(server.grpc_url, lambda client: [send(client)])
    assert answer.error == (
        f"cancel_key is {key!r}; it must be 32 random digits from 0-9 and a-f, such as those of a UUID"
    )


@pytest.mark.parametrize("name", ["cancel", "cancel_key", "list_requests"])
def test_clients_of_completion_cannot_set_what_it_sets_itself(server: TritonServer, name: str) -> None:
    inputs = tensors({"text_input": "Blue is", "max_tokens": 2, "exclude_input_in_output": True})
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        plain = client.infer("completion", inputs)
        other = client.infer("completion", inputs, parameters={name: "0" * 32})
    assert other.as_numpy("text_output").item() == plain.as_numpy("text_output").item()
