"""Which prompts a client sends to a server for prompts, and what it asks of both servers."""

import asyncio
import json
from array import array
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from inflight_client import (
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    Prefill,
    RequestCancelled,
    ServerOverloaded,
    TransportError,
)
from inflight_client.options import TimeLimits
from inflight_client.prefill.async_connection import AsyncPrefillConnection
from inflight_client.prefill.connection import PrefillConnection
from inflight_client.prefill.prefill import _KEPT, PrefillServers, second_call
from inflight_client.request import Request, make_embedding_request, make_request
from inflight_client.response import Reply
from serving.fields import GROUPS

PREFILL = Prefill(url="prefill:8001", min_tokens=8, timeout=3)
LIMITS = TimeLimits(60, 60, 60)
OFFER = {"do_remote_prefill": True, "remote_request_id": "a" * 32}
LONG = list(range(8))


def ask(prompt: Any = LONG, **sampling: Any) -> Request:
    return make_request("llm", prompt, None, sampling, stream=True)  # type: ignore[arg-type]


def reply(text: str, offer: str = "") -> Reply:
    return Reply([text], ["stop"], (), (), None, kv_transfer_params=offer)


class Fake:
    """A server that answers each request with one reply, or with an error."""

    def __init__(self, answer: Reply | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[Request, TimeLimits]] = []

    def start(self, request: Request, limits: TimeLimits) -> "Fake":
        self.asked.append((request, limits))
        return self

    def replies(self) -> Iterator[Reply]:
        if isinstance(self.answer, Exception):
            raise self.answer
        yield self.answer

    def cancel(self) -> None:
        self.answer = RequestCancelled("cancelled")


class AsyncFake(Fake):
    async def replies(self) -> AsyncGenerator[Reply, None]:  # type: ignore[override]
        for each in super().replies():
            yield each

    async def cancel(self) -> None:  # type: ignore[override]
        super().cancel()


def test_long_prompts_to_generate_from_go_to_the_server_for_prompts() -> None:
    assert PREFILL.is_for(ask())
    assert not PREFILL.is_for(ask(LONG[:7]))
    assert PREFILL.is_for(ask("x" * 32))
    assert not PREFILL.is_for(ask("x" * 31))
    assert PREFILL.is_for(make_request("llm", None, [{"role": "user", "content": "x" * 9}], {}, stream=False))
    assert not PREFILL.is_for(ask(prompt_logprobs=0))
    assert PREFILL.is_for(ask(truncate_prompt_tokens=7))
    assert not PREFILL.is_for(ask(truncate_prompt_tokens=-1))
    assert not PREFILL.is_for(ask(images=[b"a file"]))
    rows = memoryview(array("f", [0.0] * 4)).cast("B").cast("f", [2, 2])
    assert not PREFILL.is_for(ask(prompt_embeds=rows))
    assert not PREFILL.is_for(ask(sampling_parameters={"prompt_embeds": [[0.0]]}))
    assert not PREFILL.is_for(ask(sampling_parameters={"kv_transfer_params": OFFER}))
    assert not PREFILL.is_for(make_embedding_request("llm", LONG, {}, {}))


def test_the_first_call_has_all_that_makes_the_prompt() -> None:
    prompt = ("text_input", "messages", "input_ids", "embedding_request")
    elsewhere = {field.name for field in GROUPS["Prompt"]} - {"image"}  # Prompts with images do not go there.
    elsewhere -= {"prompt_embeds", "prompt_embedding_table", "prompt_vocab_size"}  # Nor do those with embeddings.
    assert elsewhere - set(prompt) <= _KEPT


def test_the_first_call_has_the_place_of_the_request_and_none_of_its_answer() -> None:
    request = ask(tenant="a", priority=2, n=3, seed=5, logprobs=1, stop=["x"], deadline_ms=500, temperature=2)
    first, limits = PREFILL.first_call(request, LIMITS)
    assert first.parameters == {
        "tenant": "a",
        "priority": 2,
        "deadline_ms": 500,
        "max_tokens": 1,
        "temperature": 0,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    assert (first.prompt, first.stream, limits.total) == (LONG, False, 3)


def test_without_an_offer_the_second_call_is_the_request() -> None:
    request, limits = second_call(ask(n=3), LIMITS, None, 2)
    assert request.parameters == {"n": 3}
    assert limits == TimeLimits(58, 60, 58)


def test_the_second_call_has_what_is_left_of_the_time() -> None:
    request, limits = second_call(ask(deadline_ms=500), LIMITS, OFFER, 0.2)
    assert request.parameters == {"deadline_ms": 300, "kv_transfer_params": OFFER}
    assert limits.total == pytest.approx(59.8)


def run(prompts: Fake, rest: Fake, is_async: bool) -> tuple[list[str], dict[str, int]]:
    """The texts that a client gets, and what it counts."""
    if not is_async:
        connection = PrefillConnection(PREFILL, prompts, rest)  # type: ignore[arg-type]
        call = connection.start(ask(), LIMITS)
        return [each.texts[0] for each in call.replies()], dict(connection.servers.outcomes)
    other = AsyncPrefillConnection(PREFILL, prompts, rest)  # type: ignore[arg-type]

    async def texts() -> list[str]:
        return [each.texts[0] async for each in other.start(ask(), LIMITS).replies()]

    return asyncio.run(texts()), dict(other.servers.outcomes)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (reply("first", json.dumps(OFFER)), "offered"),
        (reply("first", "null"), "not_offered"),
        (reply("first"), "not_offered"),
        (reply("first", "{"), "failed"),
        (reply("first", "[1]"), "failed"),
        (TransportError("gone"), "failed"),
        (InvalidRequest("no"), "failed"),
    ],
)
def test_the_answer_is_that_of_the_second_server(first: Reply | Exception, outcome: str, is_async: bool) -> None:
    kind = AsyncFake if is_async else Fake
    prompts, rest = kind(first), kind(reply("second"))
    texts, outcomes = run(prompts, rest, is_async)
    assert texts == ["second"]
    assert {name: count for name, count in outcomes.items() if count} == {outcome: 1}
    ((request, _),) = rest.asked
    assert request.parameters == ({"kv_transfer_params": OFFER} if outcome == "offered" else {})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cancelled_request_has_no_second_call(is_async: bool) -> None:
    kind = AsyncFake if is_async else Fake
    prompts, rest = kind(RequestCancelled("cancelled")), kind(reply("second"))
    with pytest.raises(RequestCancelled):
        run(prompts, rest, is_async)
    assert rest.asked == []


class Times:
    """A clock, and what servers for prompts with a time limit of 3 seconds did."""

    def __init__(self) -> None:
        self.now = 0.0
        self.servers = PrefillServers(PREFILL, lambda: self.now)

    def asks(self, seconds: float = 0.0, error: InflightError | None = None) -> bool:
        """Whether a request asks them. If so, that ends after so many seconds."""
        if (call := self.servers.begin()) is None:
            return False
        self.now += seconds
        call.end(error)
        return True


SILENT = [(3.0, DeadlineExceeded("nothing came")), (0.0, TransportError("gone"))]


@pytest.mark.parametrize(("seconds", "error"), SILENT)
def test_servers_that_do_not_answer_are_asked_again_by_one_request_after_a_while(
    seconds: float, error: InflightError
) -> None:
    times = Times()
    assert times.asks(seconds, error)
    assert not times.asks()
    times.now += 9.9
    assert not times.asks()
    times.now += 0.2
    trial = times.servers.begin()
    assert trial is not None
    assert not times.asks()
    trial.end(None)
    assert times.asks()
    assert times.servers.outcomes == {"offered": 0, "not_offered": 2, "failed": 1, "skipped": 3}


def test_servers_that_stay_silent_cost_one_request_its_time_each_while() -> None:
    times, asking = Times(), 0
    for _ in range(100):
        times.now += 1
        asking += times.asks(3.0, DeadlineExceeded("nothing came"))
    assert asking <= 10


@pytest.mark.parametrize(
    "error", [InvalidRequest("no"), ServerOverloaded("full"), DeadlineExceeded("the request had 1 s")]
)
def test_servers_that_refuse_a_request_are_asked_again(error: InflightError) -> None:
    times = Times()
    assert times.asks(1.0, error)
    assert times.asks()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_for_which_nobody_is_asked_has_one_call(is_async: bool) -> None:
    kind, connect = (AsyncFake, AsyncPrefillConnection) if is_async else (Fake, PrefillConnection)
    prompts, rest = kind(TransportError("gone")), kind(reply("second"))
    connection: Any = connect(PREFILL, prompts, rest)  # type: ignore[arg-type]

    async def ask_twice() -> None:
        for _ in range(2):
            found = connection.start(ask(), LIMITS).replies()
            texts = [each.texts[0] async for each in found] if is_async else [each.texts[0] for each in found]
            assert texts == ["second"]

    asyncio.run(ask_twice())
    assert (len(prompts.asked), len(rest.asked)) == (1, 2)


@pytest.mark.parametrize("options", [{"min_tokens": -1}, {"timeout": 0}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="it must be"):
        Prefill(url="a:1", **options)
