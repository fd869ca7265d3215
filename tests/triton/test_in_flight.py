"""Requests join and leave the batch at every step."""

import asyncio
from statistics import median

from scripts.launch.triton_server import TritonServer
from tests.triton.test_answers import made_up_prompt
from tests.triton.wire import Answer, ask, together

LONG = {"stream": True, "max_tokens": 50, "temperature": 0.0, "ignore_eos": True, "return_perf_metrics": True}


def gaps(answer: Answer) -> list[float]:
    return [b - a for a, b in zip(answer.times, answer.times[1:], strict=False)]


def test_newcomer_gets_its_first_token_while_others_run(server: TritonServer) -> None:
    """While 32 long requests run, a new request ends before all of them, within a few steps."""

    def make(client):  # type: ignore[no-untyped-def]
        async def newcomer() -> Answer:
            # A short request first. When it is done, the long ones, which were sent before it, are running.
            await ask(client, {"text_input": "One two", "stream": True, "max_tokens": 2})
            fields = {"text_input": "Red and", "stream": True, "max_tokens": 4, "return_perf_metrics": True}
            return await ask(client, fields)

        long = [ask(client, {"text_input": made_up_prompt(i, 8), **LONG}) for i in range(32)]
        return [*long, newcomer()]

    *running, newcomer = together(server.grpc_url, make)
    assert all(answer.error is None for answer in running)
    ended = [answer.server_times["last_token_time_ns"] for answer in (newcomer, *running)]
    assert ended[0] < min(ended[1:])
    # The tokens that one of the others received in the meantime are the steps that the new request took.
    during = [t for t in running[0].times if newcomer.times[0] <= t <= newcomer.times[-1]]
    assert len(during) <= 8


def test_long_prompt_does_not_stop_the_others(server: TritonServer) -> None:
    """While the engine computes a prompt of 1,500 tokens, running requests get tokens between its chunks."""

    def make(client):  # type: ignore[no-untyped-def]
        async def long_prompt() -> Answer:
            await ask(client, {"text_input": "One two", "stream": True, "max_tokens": 2})
            sent = asyncio.get_running_loop().time()
            answer = await ask(client, {"text_input": made_up_prompt(99, 1500), "stream": True, "max_tokens": 2})
            answer.times.insert(0, sent)
            return answer

        return [*(ask(client, {"text_input": made_up_prompt(i, 8), **LONG}) for i in range(8)), long_prompt()]

    *running, newcomer = together(server.grpc_url, make)
    sent, first_token = newcomer.times[:2]
    assert newcomer.error is None
    for answer in running:
        assert answer.error is None
        meanwhile = [t for t in answer.times if sent < t < first_token]
        # The default budget splits such a prompt into at least three chunks. Each step gives every request a token.
        assert len(meanwhile) >= 2
        assert max(gaps(answer)) < first_token - sent


def test_tokens_arrive_one_by_one(server: TritonServer) -> None:
    (answer,) = together(
        server.grpc_url, lambda client: [ask(client, {"text_input": "A long story:", **LONG, "max_tokens": 90})]
    )
    assert len(answer.pieces) > 50
    assert max(gaps(answer)) < 20 * median(gaps(answer))
