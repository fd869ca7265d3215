"""The kinds of requests in a storm. Each asks one request and says how it ended, or raises what is wrong."""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httpx
import tritonclient.grpc.aio as aio

from load_tests.chaos.doors import Door, NotAnswered, Piece, Question
from load_tests.chaos.service import Ports
from load_tests.storm.answers import Answers, Wrong, whole_answer
from load_tests.storm.malformed import BAD, BAD_AT_THE_GATEWAY
from load_tests.storm.questions import ASKED, CHATTY, LONG, PROMPTS
from load_tests.storm.sockets import SlowDoor, leave
from load_tests.tensors import tensors

_LONGEST_DEADLINE_MS = 400
_MOST_PIECES = 6
_LONGEST_PATIENCE = 0.1
_NEW_TENANT = 0.2
"""The fraction of requests with a tenant that was never seen before."""
_OPTIONAL_OUTPUTS = ("finish_reason", "token_ids", "num_output_tokens", "cumulative_logprob", "usage")


class End(Enum):
    """How a request ended, if all is well."""

    RIGHT = "right"
    REFUSED = "refused, as it must be"
    LEFT = "left by its client"


@dataclass(frozen=True)
class Scene:
    """What a request needs."""

    streaming: Sequence[Door]
    """Doors whose requests can be cancelled in the middle."""
    triton: Sequence[Door]
    """Doors that take all fields of the model."""
    doors: Sequence[Door]
    """All doors."""
    grpc: aio.InferenceServerClient
    http: httpx.AsyncClient
    ports: Ports
    answers: Answers


@dataclass(frozen=True)
class Kind:
    """A kind of request, and how often it comes in relation to others."""

    name: str
    weight: int
    ask: Callable[[Scene, random.Random], Awaitable[End]]


def _answered(questions: Sequence[Question]) -> Callable[[Scene, random.Random], Awaitable[End]]:
    async def ask(scene: Scene, chance: random.Random) -> End:
        question, door = chance.choice(questions), chance.choice(scene.doors)
        asked = question
        if door in scene.triton and chance.random() < _NEW_TENANT:
            asked = question.but(tenant=f"tenant {chance.getrandbits(64)}")
        scene.answers.check(question, await whole_answer(door, asked))
        return End.RIGHT

    return ask


async def _deadline(scene: Scene, chance: random.Random) -> End:
    question = chance.choice(LONG)
    limited = question.but(deadline_ms=chance.randint(1, _LONGEST_DEADLINE_MS))
    try:
        (sample,) = await whole_answer(chance.choice(scene.triton), limited)
    except NotAnswered as error:
        if "deadline" not in str(error).lower():
            raise
        return End.REFUSED
    if sample.finish_reason == "deadline":
        scene.answers.check_beginning(question, sample.text)
    else:
        scene.answers.check(question, [sample])
    return End.RIGHT


async def _cancelled(scene: Scene, chance: random.Random) -> End:
    """Leave after some pieces, or after some time, whichever comes first."""
    question, text = chance.choice(LONG), ""
    patience = chance.random() * _LONGEST_PATIENCE if chance.random() < 0.3 else None
    with contextlib.suppress(TimeoutError):
        pieces = chance.choice(scene.streaming).ask(question)
        async with asyncio.timeout(patience), contextlib.aclosing(pieces):
            for _ in range(chance.randint(1, _MOST_PIECES)):
                text += (await anext(pieces, Piece(""))).text
    scene.answers.check_beginning(question, text)
    return End.LEFT


async def _named_outputs(scene: Scene, chance: random.Random) -> End:
    """Ask for some of the outputs only. Triton removes the other ones from each response."""
    question = chance.choice(ASKED["greedy"])
    named = ["text_output", *chance.sample(_OPTIONAL_OUTPUTS, chance.randint(0, len(_OPTIONAL_OUTPUTS)))]
    flags = {"exclude_input_in_output": True, **{f"return_{name}": True for name in _OPTIONAL_OUTPUTS}}
    fields = {"text_input": question.prompt, "sampling_parameters": json.dumps(dict(question.sampling)), **flags}

    async def one() -> Any:
        outputs = [aio.InferRequestedOutput(name) for name in named]
        yield {"model_name": "llm", "inputs": tensors({**fields, "stream": True}), "outputs": outputs}

    text = ""
    async for result, error in scene.grpc.stream_infer(one()):
        if error is not None:
            raise NotAnswered("error", error.message())
        if unasked := {output.name for output in result.get_response().outputs} - set(named):
            raise Wrong(f"the outputs {unasked} have come; only {named} must")
        text += result.as_numpy("text_output").item().decode()
    scene.answers.check_text(question, text)
    return End.RIGHT


async def _abandoned(scene: Scene, chance: random.Random) -> End:
    await leave(chance.choice(LONG), scene.ports, chance)
    return End.LEFT


async def _slow(scene: Scene, chance: random.Random) -> End:
    scene.answers.check(CHATTY, await whole_answer(SlowDoor(scene.ports.http), CHATTY))
    return End.RIGHT


async def _malformed(scene: Scene, chance: random.Random) -> End:
    fields, says = chance.choice(BAD)
    if chance.random() < 0.5:
        return _refused(await _error_over_grpc(scene.grpc, fields), says)
    model = "llm" if "stream" in fields or chance.random() < 0.5 else "completion"
    try:
        content = json.dumps(fields)
    except TypeError:  # JSON cannot say it.
        return _refused(await _error_over_grpc(scene.grpc, fields), says)
    reply = await scene.http.post(f"/v2/models/{model}/generate", content=content)
    return _refused(reply.json()["error"] if reply.status_code == 400 else reply.text, says)


async def _error_over_grpc(client: aio.InferenceServerClient, fields: dict[str, Any]) -> str:
    async def one() -> Any:
        yield {"model_name": "llm", "inputs": tensors(fields)}

    said = "no answer"
    async for _, error in client.stream_infer(one()):
        said = "no error" if error is None else error.message()
    return said


def _refused(error: str, says: str) -> End:
    if says not in error:
        raise Wrong(f"the error is {error[:300]!r}; it must say {says!r}")
    return End.REFUSED


async def _malformed_at_the_gateway(scene: Scene, chance: random.Random) -> End:
    path, body, status, says = chance.choice(BAD_AT_THE_GATEWAY)
    url = f"http://127.0.0.1:{scene.ports.gateway}{path}"
    reply = await scene.http.post(url, content=body, headers={"Content-Type": "application/json"})
    if reply.status_code != status:
        raise Wrong(f"the status is {reply.status_code}; it must be {status}: {reply.text}")
    return _refused(reply.text, says)


async def _too_long(scene: Scene, chance: random.Random) -> End:
    """Some are refused by their bytes, others when they have been tokenized."""
    words = chance.choice((8_200, 9_000, 150_000))
    question = Question(f"{chance.choice(PROMPTS)} " + "word " * words)
    try:
        await whole_answer(chance.choice(scene.doors), question)
    except NotAnswered as error:
        return _refused(str(error), "it must ")
    raise Wrong("a prompt that is too long has an answer")


KINDS = (
    *(
        Kind(name, weight, _answered(ASKED[name]))
        for name, weight in (
            ("greedy", 16),
            ("sampled with a seed", 10),
            ("several samples", 5),
            ("log-probabilities", 5),
            ("stop strings", 5),
            ("changed logits", 5),
            ("structured outputs", 5),
            ("chats", 5),
            ("long prompts", 3),
        )
    ),
    Kind("deadline passes", 7, _deadline),
    Kind("some of the outputs", 5, _named_outputs),
    Kind("cancelled in the middle", 10, _cancelled),
    Kind("connection closed in the middle", 8, _abandoned),
    Kind("slow reader", 2, _slow),
    Kind("malformed", 12, _malformed),
    Kind("malformed, at the gateway", 4, _malformed_at_the_gateway),
    Kind("too long a prompt", 3, _too_long),
)


def asked_questions() -> list[Question]:
    """All questions whose answers must be known."""
    return [*itertools.chain.from_iterable(ASKED.values()), *LONG, CHATTY]
