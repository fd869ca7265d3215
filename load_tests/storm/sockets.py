"""Clients that speak HTTP by hand, to do what no library does."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import AsyncGenerator
from typing import Any

from load_tests.chaos.doors import Piece, Question
from load_tests.chaos.service import Ports
from scripts.launch.server_process import ADDRESS

_RECEIVE_BUFFER = 4096
_LONGEST_STAY = 0.2
_SLOW_PIECE = 256
_SLOW_READS = 40
_PAUSE_SECONDS = 0.01


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection = socket.socket()
    # Before `connect`, which fixes the TCP window.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (ADDRESS, port))
    return await asyncio.open_connection(sock=connection, limit=_SLOW_PIECE)


def _request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Type: application/json\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode()


def _llm(question: Question, **options: object) -> dict[str, Any]:
    sampling = json.dumps(dict(question.sampling))
    return {"text_input": question.prompt, "sampling_parameters": sampling, **options}


async def leave(question: Question, ports: Ports, chance: random.Random) -> None:
    """Close a connection in the middle of the request, of the wait, or of the answer."""
    openai = {"model": "llm", "prompt": question.prompt, **question.sampling}
    port, request = chance.choice(
        [
            (ports.http, _request("/v2/models/llm/generate_stream", _llm(question, stream=True))),
            (ports.http, _request("/v2/models/llm/generate", _llm(question))),
            (ports.http, _request("/v2/models/completion/generate", _llm(question))),
            (ports.gateway, _request("/v1/completions", {**openai, "stream": True})),
            (ports.gateway, _request("/v1/completions", openai)),
        ]
    )
    reader, writer = await _connect(port)
    whole = chance.random() < 0.7
    writer.write(request if whole else request[: chance.randrange(len(request))])
    await writer.drain()
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(chance.random() * _LONGEST_STAY):
            await reader.read(chance.randint(1, 500))
    if chance.random() < 0.5:
        # With a linger time of 0 the kernel sends a reset. Otherwise the other side sees an orderly end.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class SlowDoor:
    """`generate_stream`, read slowly and through a small window."""

    name = "HTTP, slow reader"

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, question: Question) -> AsyncGenerator[Piece, None]:
        """See `Door`."""
        reader, writer = await _connect(self._port)
        outputs = {"return_token_ids": True, "return_finish_reason": True, "return_logprobs": True}
        writer.write(_request("/v2/models/llm/generate_stream", _llm(question, stream=True, **outputs)))
        answer = b""
        with contextlib.closing(writer):
            for _ in range(_SLOW_READS):
                answer += await reader.read(_SLOW_PIECE)
                await asyncio.sleep(_PAUSE_SECONDS)
            answer += await reader.read()
        for line in _body(answer).decode().splitlines():
            if line.startswith("data:"):
                for piece in _pieces(json.loads(line.removeprefix("data:"))):
                    yield piece


def _body(response: bytes) -> bytes:
    """The body of a response in chunks."""
    _, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


def _pieces(event: dict[str, Any]) -> list[Piece]:
    """The pieces in an event with several samples."""
    width = len(event["token_ids"]) // len(event["text_output"])
    pieces = []
    for sample, text in enumerate(event["text_output"]):
        ids = event["token_ids"][sample * width : (sample + 1) * width]
        entries = json.loads(event["logprobs"][sample]) or []
        logprobs = tuple(entry[str(token)]["logprob"] for entry, token in zip(entries, ids, strict=False))
        reason = event["finish_reason"][sample]
        pieces.append(Piece(text, sample, logprobs, None if reason == "None" else reason))
    return pieces
