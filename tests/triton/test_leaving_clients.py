"""Clients that do not read, or disconnect: the engine continues for the others and becomes idle at the end."""

import asyncio
import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

import tritonclient.grpc.aio as aio

from load_tests.tensors import tensors
from scripts.launch.server_process import ADDRESS
from scripts.launch.triton_server import TritonServer
from tests.triton.prometheus import Scrape, at_rest, scrape, scrape_when
from tests.triton.test_cancellation import LONG, wait_until_idle
from tests.triton.wire import Answer, Fields, ask, together

GOOD = {"text_input": "Once upon a time", "stream": True, "max_tokens": 40}
# The log-probabilities of this many samples take at least 20 KB per step, so the buffers of a connection are full after
# a few steps.
SAMPLES = 16
MANY = {"n": SAMPLES, "temperature": 1.0, "seed": 1, "logprobs": 20, "ignore_eos": True}
RECEIVE_BUFFER = 4096


def chatty(max_tokens: int) -> Fields:
    wanted = {"stream": True, "return_logprobs": True, "return_num_output_tokens": True}
    return {"text_input": "A", "sampling_parameters": json.dumps({**MANY, "max_tokens": max_tokens}), **wanted}


def unread_over_http(server: TritonServer, fields: Fields) -> socket.socket:
    """Open a connection to generate_stream that sends a request and reads nothing."""
    connection = socket.socket()
    # Before `connect`, which fixes the TCP window.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    connection.connect((ADDRESS, server.http_port))
    body = json.dumps(fields)
    head = f"POST /v2/models/llm/generate_stream HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


def unread_over_grpc(client: aio.InferenceServerClient, fields: Fields) -> Any:
    """Open a stream that sends a request. Until it is iterated, gRPC receives no more than one flow-control window."""

    async def requests() -> Any:
        yield {"model_name": "llm", "inputs": tensors(fields)}

    return client.stream_infer(requests())


def num_unread(connection: socket.socket) -> int:
    return len(connection.recv(2**24, socket.MSG_PEEK))


def read_http(connection: socket.socket) -> tuple[int, int]:
    """Return the numbers of tokens and bytes of a whole stream."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    body = response.read()
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    return sum(sum(event["num_output_tokens"]) for event in events), len(body)


async def read_grpc(responses: Any) -> int:
    """Return the number of tokens of a whole stream."""
    tokens = 0
    async for result, error in responses:
        assert error is None
        tokens += int(result.as_numpy("num_output_tokens").sum())
    return tokens


def num_ended(found: Scrape, reason: str) -> float:
    return found.by("request_success_total", "finished_reason")[reason]


async def wait_for(server: TritonServer, reached: Callable[[Scrape], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached(await asyncio.to_thread(scrape, server)):
            await asyncio.sleep(0.05)


def test_clients_that_do_not_read_hold_up_nobody(server: TritonServer, greedy: Callable[[str, int], str]) -> None:
    """Their requests run to the end, and they can read the whole answer later."""
    steps = 20
    before = num_ended(scrape_when(server, at_rest), "length")

    async def scenario(client: aio.InferenceServerClient) -> Answer:
        with unread_over_http(server, chatty(steps)) as connection:
            responses = unread_over_grpc(client, chatty(steps))
            good = await ask(client, GOOD)
            await wait_for(server, lambda found: num_ended(found, "length") == before + 2 * SAMPLES + 1)
            unread = num_unread(connection)
            tokens, size = await asyncio.to_thread(read_http, connection)
            assert unread < size / 10  # Most of the answer had to wait in the server.
            assert tokens == await read_grpc(responses) == SAMPLES * steps
        return good

    (good,) = together(server.grpc_url, lambda client: [scenario(client)])
    assert (good.error, good.text) == (None, greedy(GOOD["text_input"], GOOD["max_tokens"]))
    wait_until_idle(server, 20)


def test_clients_that_go_without_having_read_free_the_engine(server: TritonServer) -> None:
    before = scrape_when(server, at_rest)

    def choked(found: Scrape) -> bool:
        gain = found.get("generation_tokens_total") - before.get("generation_tokens_total")
        return gain > 2 * SAMPLES * 15

    async def scenario(client: aio.InferenceServerClient) -> None:
        with unread_over_http(server, chatty(1500)):
            responses = unread_over_grpc(client, chatty(1500))
            await wait_for(server, choked)
            responses.cancel()

    together(server.grpc_url, lambda client: [scenario(client)])
    wait_until_idle(server, 20)
    assert num_ended(scrape(server), "cancelled") - num_ended(before, "cancelled") == 2 * SAMPLES


def test_a_cancelled_request_takes_part_in_few_more_steps(server: TritonServer) -> None:
    """Counts steps by tokens, one per step: those generated, less those that the client had when it cancelled."""
    received = 3
    before = scrape_when(server, at_rest)
    together(server.grpc_url, lambda client: [ask(client, LONG, cancel_after=received)])
    after = scrape_when(
        server, lambda found: at_rest(found) and num_ended(found, "cancelled") > num_ended(before, "cancelled")
    )
    made = after.get("generation_tokens_total") - before.get("generation_tokens_total")
    print(f"{made - received:.0f} steps after the client's cancellation")
    assert received <= made < received + 50
