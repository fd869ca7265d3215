"""The engine's queue under load: bounds, priorities, timeouts and deadlines."""

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import httpx
import pytest
import tritonclient.grpc.aio as aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight_client import AsyncClient, DeadlineExceeded, RetryPolicy
from load_tests.tensors import dtype, tensors
from scripts.launch.triton_server import TritonServer
from tests.triton.plugs import (
    LONG,
    RUNNING,
    SHORT,
    Ask,
    Plugs,
    first_tokens,
    listed_when,
    plugged,
    refusals,
    start,
    wait_for,
)
from tests.triton.prometheus import Scrape, at_rest, scrape, scrape_when
from tests.triton.test_lifecycle import processes, resident_mib
from tests.triton.wire import Answer, Fields, ask_all, one

QUEUE = 100
OVERLOAD = 500
# After a timeout, level 3 delays a request. The other levels reject it.
PARAMETERS = {
    "max_num_seqs": f"{RUNNING}",
    "max_queue_size": f"{QUEUE}",
    "priority_levels": "3",
    "default_priority_level": "2",
    "allow_timeout_override": "true",
    "priority_queue_policy": json.dumps({"3": {"timeout_action": "DELAY", "allow_timeout_override": True}}),
}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server with four slots, a waiting queue of 100 requests and three priority levels."""
    with start(tmp_path_factory.mktemp("queue"), PARAMETERS) as running:
        yield running


async def seconds_of_refusals(server: TritonServer, count: int) -> float:
    """Return the seconds between the first and the last of `count` refusals, as /metrics shows them."""
    before = num_refused(await asyncio.to_thread(scrape, server))
    began = None
    while (refused := num_refused(await asyncio.to_thread(scrape, server)) - before) < count:
        if began is None and refused:
            began = time.monotonic()
        await asyncio.sleep(0.02)
    return 0.0 if began is None else time.monotonic() - began


def num_refused(found: Scrape) -> float:
    return found.by("request_refused_total", "reason")["overload"]


def overload_once(server: TritonServer) -> list[Answer]:
    """Send far more requests than the queue holds while all slots are occupied. Then pull the plugs.

    Returns all answers.
    """

    async def overload(send: Ask, plugs: Plugs) -> list[Answer]:
        refusals = asyncio.create_task(seconds_of_refusals(server, OVERLOAD - QUEUE))
        tasks = [asyncio.create_task(send(SHORT | {"priority": 1 + i % 3})) for i in range(OVERLOAD)]
        async with asyncio.timeout(60):
            await wait_for(tasks, OVERLOAD - QUEUE)
            print(f"{OVERLOAD - QUEUE} refusals in {await refusals:.2f} s")
        # All plugs are still running, so each request that is done was refused at once.
        assert plugs.all_run()
        plugs.pull()
        return await asyncio.gather(*tasks)

    answers: list[Answer] = plugged(server, overload)
    return answers


def test_overload_is_refused_at_once_and_the_rest_served_by_priority(busy: TritonServer) -> None:
    memory = []
    for _ in range(2):
        answers = overload_once(busy)
        assert len(refusals(answers)) == OVERLOAD - QUEUE
        says = f"Exceeds maximum queue size: {QUEUE} requests wait; max_queue_size is {QUEUE}"
        assert set(refusals(answers)) == {says}
        by_level = [first_tokens(answers[level::3]) for level in range(3)]
        assert sum(map(len, by_level)) == QUEUE
        for higher, lower in pairwise(times for times in by_level if times):
            assert median(higher) < min(lower)
            assert max(higher) < median(lower)
        scrape_when(busy, at_rest)
        memory.append({pid: resident_mib(pid) for pid in processes(busy)})
    warm, again = memory
    growth = {pid: again[pid] - warm[pid] for pid in warm}
    print(f"resident MiB: {warm}, grown by {growth}")
    assert all(grown < 32 for grown in growth.values())


def test_a_deadline_ends_a_request_that_runs_with_what_it_has(busy: TritonServer) -> None:
    answer = one(busy.grpc_url, **LONG, deadline_ms=400)
    assert (answer.error, answer.finish_reason) == (None, "deadline")
    assert 0 < len(answer.pieces) < 1000


class Completion:
    """Sends requests to `completion` over both protocols. Returns text and finish reason, or status and message."""

    def __init__(self, server: TritonServer) -> None:
        self._server = server

    async def over_grpc(self, fields: Fields) -> tuple[str, str]:
        async with aio.InferenceServerClient(self._server.grpc_url) as client:
            try:
                result = await client.infer("completion", tensors(fields))
            except InferenceServerException as error:
                return error.status(), error.message()
        return result.as_numpy("text_output").item().decode(), result.as_numpy("finish_reason").item().decode()

    async def over_http(self, fields: Fields) -> tuple[str, str]:
        kinds = {name: np_to_triton_dtype(dtype(name)) for name in fields}
        inputs = [{"name": name, "shape": [1], "datatype": kinds[name], "data": [fields[name]]} for name in fields]
        async with httpx.AsyncClient(timeout=60) as http:
            url = f"http://{self._server.http_url}/v2/models/completion/infer"
            reply = await http.post(url, json={"inputs": inputs})
        if reply.status_code != 200:
            return str(reply.status_code), reply.json()["error"]
        outputs = {output["name"]: output["data"][0] for output in reply.json()["outputs"]}
        return outputs["text_output"], outputs["finish_reason"]


def test_deadlines_hold_for_completion(busy: TritonServer) -> None:
    completion = Completion(busy)
    patient = {name: value for name, value in LONG.items() if name != "stream"} | {"return_finish_reason": True}

    async def both(fields: Fields) -> list[tuple[str, str]]:
        return await asyncio.gather(completion.over_grpc(fields), completion.over_http(fields))

    for text, finish_reason in asyncio.run(both({**patient, "deadline_ms": 1000})):
        assert finish_reason == "deadline"
        assert len(text) > len(patient["text_input"])
    says = "deadline_ms is 50; it passed while the request waited"
    late = plugged(busy, lambda send, plugs: both({**patient, "deadline_ms": 50}))
    assert late == [("StatusCode.UNAVAILABLE", says), ("503", says)]


def test_requests_that_wait_too_long_end_with_the_reason(busy: TritonServer) -> None:
    async def wait(send: Ask, plugs: Plugs) -> list[Any]:
        body = {"text_input": "One two", "max_tokens": 4, "timeout": 50_000}
        url = f"http://{busy.http_url}/v2/models/llm/generate"
        async with httpx.AsyncClient(timeout=60) as http:
            return await asyncio.gather(
                send(SHORT | {"deadline_ms": 50}), send(SHORT, timeout=50_000), http.post(url, json=body)
            )

    late, timed_out, reply = plugged(busy, wait)
    assert late.error == "deadline_ms is 50; it passed while the request waited"
    assert timed_out.error == "Request timeout expired: it waited longer than its timeout, 50000 us"
    assert reply.status_code in (400, 503)  # For `generate`, release 24.10 turns every error of a model into 400.
    assert "Request timeout expired" in reply.json()["error"]


def test_a_client_does_not_send_again_what_its_own_limit_ended(busy: TritonServer) -> None:
    """The queue is full of others, so a request that is sent again would wait for seconds."""
    retry = RetryPolicy(initial=60, longest=60)

    async def late(send: Ask, plugs: Plugs) -> list[BaseException]:
        async with (
            AsyncClient(busy.grpc_url, retry=retry) as grpc,
            AsyncClient(f"http://{busy.http_url}", retry=retry) as http,
        ):
            asked = [client.generate("One two", max_tokens=4, deadline_ms=50) for client in (grpc, http)]
            asked.append(grpc.generate("One two", max_tokens=4, sampling_parameters={"timeout": 50_000}))
            async with asyncio.timeout(20):
                return await asyncio.gather(*asked, return_exceptions=True)

    deadline, over_http, timeout = plugged(busy, late)
    for error in (deadline, over_http, timeout):
        assert isinstance(error, DeadlineExceeded)
    assert str(deadline) == str(over_http) == "deadline_ms is 50; it passed while the request waited"
    assert str(timeout) == "Request timeout expired: it waited longer than its timeout, 50000 us"


def test_samples_are_refused_before_the_first_of_them_begins(busy: TritonServer) -> None:
    """With 98 requests in a queue of 100, three samples have no room, and two have."""

    async def fill(send: Ask, plugs: Plugs) -> list[Answer]:
        tasks = [asyncio.create_task(send(SHORT)) for _ in range(QUEUE - 2)]
        await asyncio.to_thread(
            scrape_when, busy, lambda found: found.get("num_requests_waiting", model="llm") == QUEUE - 2
        )
        samples = {"text_input": "One two", "stream": True, "max_tokens": 4}
        three = await send({**samples, "sampling_parameters": '{"n": 3}'})
        two = asyncio.create_task(send({**samples, "sampling_parameters": '{"n": 2}'}))
        one_more = asyncio.create_task(send(SHORT))
        await wait_for([two, one_more], 1)
        plugs.pull()
        refused = await one_more
        two.cancel()
        await asyncio.gather(*tasks)
        return [three, refused]

    three, one_more = plugged(busy, fill)
    assert three.error == (
        f"Exceeds maximum queue size: 3 samples more do not fit: {QUEUE - 2} requests wait; max_queue_size is {QUEUE}"
    )
    assert one_more.error == f"Exceeds maximum queue size: {QUEUE} requests wait; max_queue_size is {QUEUE}"


def test_the_code_of_a_full_queue_is_unavailable(busy: TritonServer) -> None:
    """Tested with `completion`: a stream needs the header triton_grpc_error to pass on the code of an error, and with
    this header Triton 24.10 crashes about once in a few thousand errors."""

    async def refused(send: Ask, plugs: Plugs) -> list[tuple[str, str]]:
        tasks = [asyncio.create_task(send(SHORT)) for _ in range(QUEUE + 1)]
        await wait_for(tasks, 1)
        fields = {"text_input": "One two"}
        outcomes = await asyncio.gather(Completion(busy).over_grpc(fields), Completion(busy).over_http(fields))
        for task in tasks:
            task.cancel()
        return outcomes

    says = f"Exceeds maximum queue size: {QUEUE} requests wait; max_queue_size is {QUEUE}"
    assert plugged(busy, refused) == [("StatusCode.UNAVAILABLE", says), ("503", says)]
    scrape_when(busy, at_rest)


def test_where_the_action_is_delay_a_late_request_lets_the_others_pass(busy: TritonServer) -> None:
    fields = {**SHORT, "priority": 3, "return_perf_metrics": True}

    async def wait(send: Ask, plugs: Plugs) -> list[Answer]:
        late = asyncio.create_task(send(fields, timeout=50_000, request_id="late"))
        await listed_when(busy, lambda waiting: waiting.get("late", 0) > 0.05)
        on_time = asyncio.create_task(send(fields, request_id="on time"))
        await listed_when(busy, lambda waiting: "on time" in waiting)
        plugs.pull(1)
        return await asyncio.gather(late, on_time)

    late, on_time = plugged(busy, wait)
    assert (late.error, on_time.error) == (None, None)
    assert late.server_times["arrival_time_ns"] < on_time.server_times["arrival_time_ns"]
    assert on_time.server_times["last_token_time_ns"] <= late.server_times["first_token_time_ns"]


@pytest.mark.parametrize("field", ["priority", "deadline_ms", "timeout"])
def test_a_malformed_limit_is_named(busy: TritonServer, field: str) -> None:
    url = f"http://{busy.http_url}/v2/models/llm/generate"
    reply = httpx.post(url, json={"text_input": "One two", "max_tokens": 1, field: -1}, timeout=60)
    assert reply.status_code == 400
    assert f"{field} is -1; it must be at least" in reply.json()["error"]


def test_a_burst_on_an_idle_server_has_its_first_tokens_within_a_few_steps(server: TritonServer) -> None:
    """Measured in steps: the most tokens that any request has when the last one gets its first token."""
    short = {"text_input": "One two", "stream": True, "max_tokens": 24, "sampling_parameters": '{"ignore_eos": true}'}
    answers = ask_all(server.grpc_url, [short] * 64)
    assert refusals(answers) == []
    last = max(first_tokens(answers))
    assert max(sum(time < last for time in answer.times) for answer in answers) < 12
