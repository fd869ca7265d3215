"""The answers to one request so far."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace

from inflight_client.errors import DeadlineExceeded, ServerFault
from inflight_client.request import Request
from inflight_client.response import (
    Choice,
    Chunk,
    Completion,
    Embedding,
    PerfMetrics,
    PromptLogprobs,
    PromptTokens,
    Reply,
    Timings,
    Usage,
    parse_logprobs,
    parse_prompt,
)
from inflight_client.schema import AnswerSchema


class Transcript:
    """Turns the replies to one request into chunks, and at the end into a completion."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._sent = time.perf_counter()
        self._first = self._last = 0.0
        self._chunks: list[list[Chunk]] = []
        """Those of each answer. The first reply says how many there are: requests can ask for several in many ways."""
        self._num_token_ids = 0
        self._finished: set[int] = set()
        self._usage = Usage(0, 0)
        self.prompt: PromptTokens | None = None
        """The prompt as the model read it, once a response has brought it."""
        self._prompt_logprobs: PromptLogprobs | tuple[()] = ()
        self._embedding: tuple[float, ...] = ()
        self._perf: tuple[PerfMetrics, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether there has been a reply."""
        return self._first > 0.0

    @property
    def finished(self) -> bool:
        """Whether all answers are complete."""
        return self.begun and len(self._finished) == len(self._chunks)

    def add(self, reply: Reply) -> Iterator[Chunk]:
        """Add a reply and return its new chunks.

        Raises:
            DeadlineExceeded: the server ended the request because the client's own timeout has passed.
            ServerFault: the reply has the wrong number of answers, or is not from a model of Inflight.
        """
        if not self.begun:
            if reply.usage is None:
                raise ServerFault("the model's first response lacks 'usage'; it is no model of Inflight")
            if not reply.texts:
                raise ServerFault("the model's first response lacks a text; it is no model of Inflight")
            self._chunks = [[] for _ in reply.texts]
        elif len(reply.texts) != len(self._chunks):
            raise ServerFault(f"the server sent {len(reply.texts)} answers after a response with {len(self._chunks)}")
        self._last = time.perf_counter()
        self._first = self._first or self._last
        self._usage = reply.usage or self._usage
        if reply.prompt:
            self.prompt = parse_prompt(reply.prompt)
            if reply.prompt_logprobs:
                self._prompt_logprobs = PromptLogprobs(reply.prompt_logprobs, self.prompt.token_ids)
        if reply.embedding:
            self._embedding = tuple(reply.embedding)
        self._perf = tuple(reply.perf)
        chunks = [self._chunk(reply, index) for index in range(len(self._chunks)) if index not in self._finished]
        for chunk in chunks:
            self._chunks[chunk.index].append(chunk)
            self._num_token_ids += len(chunk.token_ids)
            if chunk.finish_reason is not None:
                self._finished.add(chunk.index)
            if chunk.finish_reason == "deadline" and not self._request.has_deadline:
                raise DeadlineExceeded("the server ended the request when its time was over")
        return (chunk for chunk in chunks if chunk.text or chunk.token_ids or chunk.finish_reason)

    def _chunk(self, reply: Reply, index: int) -> Chunk:
        reason = reply.finish_reasons[index] if reply.finish_reasons else "None"
        token_ids = tuple(token for token in reply.token_ids[index] if token >= 0) if reply.token_ids else ()
        return Chunk(
            text=reply.texts[index],
            finish_reason=None if reason == "None" else reason,
            token_ids=token_ids,
            logprobs=parse_logprobs(reply.logprobs[index], token_ids) if reply.logprobs else (),
            index=index,
            stop_reason=json.loads(reply.stop_reasons[index]) if reply.stop_reasons else None,
        )

    def check_finished(self) -> None:
        """Raise ServerFault unless all answers are complete."""
        if not self.finished:
            raise ServerFault("the stream ended before the text did")

    def usage(self) -> Usage:
        """The number of tokens so far."""
        return replace(self._usage, completion_tokens=max(self._num_token_ids, self._usage.completion_tokens))

    def timings(self) -> Timings:
        """The times measured so far."""
        return Timings(self._first - self._sent, self._last - self._sent)

    def perf(self) -> tuple[PerfMetrics, ...]:
        """What the server did for each answer, once they are finished and if it was asked for."""
        return self._perf

    def completion(self) -> Completion:
        """Return the whole answer. Raises ServerFault unless it is finished."""
        self.check_finished()
        choices = tuple(_choice(chunks, self._request.schema) for chunks in self._chunks)
        return Completion(choices, self.usage(), self.timings(), self.prompt, self._prompt_logprobs, self._perf)

    def embedding(self) -> Embedding:
        """Return the embedding. Raises ServerFault unless there is one."""
        self.check_finished()
        if not self._embedding:
            raise ServerFault("the model's response lacks 'embedding'; it is no model of Inflight")
        return Embedding(self._embedding, self.usage(), self.timings())


def _choice(chunks: list[Chunk], schema: AnswerSchema | None) -> Choice:
    reason = chunks[-1].finish_reason
    assert reason is not None  # The transcript is finished.
    return Choice(
        text="".join(chunk.text for chunk in chunks),
        finish_reason=reason,
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(entry for chunk in chunks for entry in chunk.logprobs),
        stop_reason=chunks[-1].stop_reason,
        schema=schema,
    )
