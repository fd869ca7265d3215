"""What a caller asks for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from inflight_client.errors import InvalidRequest

Prompt: TypeAlias = str | Sequence[int]
"""Text, or token ids."""


class Message(TypedDict):
    """One message of a chat."""

    role: str
    content: str


class Sampling(TypedDict, total=False):
    """How the text is to be made; what is left out is the model's own default."""

    # -1: as many as there is room for.
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    n: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    bad_words: Sequence[str]
    logit_bias: Mapping[int, float]
    ignore_eos: bool
    # How many likeliest tokens to tell of beside each chosen one.
    logprobs: int
    # Whether a stream's chunks have their tokens, which costs some time for each; whole answers always do.
    return_token_ids: bool
    # Place in the queue (1 is the highest), and whose share of the server is used.
    priority: int
    tenant: str
    target_ttft_ms: int
    # After so long the server ends the answer, with what there is of it and the finish reason "deadline".
    deadline_ms: int
    # Sent as it is; the keys above win over it.
    sampling_parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request, in no transport's form yet."""

    model: str
    prompt_field: str
    """The input that holds the prompt: `text_input`, `input_ids` or `messages`."""
    prompt: Prompt
    """For `messages` their JSON."""
    parameters: Mapping[str, object]
    stream: bool
    asks_for_requests: bool = False
    """It has no prompt and asks which requests wait or run."""

    @property
    def num_samples(self) -> int:
        """How many answers are wanted."""
        count = self.parameters.get("n", 1)
        return count if isinstance(count, int) else 1

    @property
    def has_deadline(self) -> bool:
        """Whether the caller asked for an end in time, to be answered with what there is by then."""
        return "deadline_ms" in self.parameters

    def sampling_json(self, seconds: float) -> str:
        """All parameters as JSON, with the `seconds` that are left for the answer as its deadline unless it has one."""
        given = {"deadline_ms": max(1, round(1000 * seconds)), **self.parameters}
        logprobs = "logprobs" in given
        token_ids = bool(given.get("return_token_ids")) or logprobs or not self.stream
        # Every output of every response costs time: a reason comes with the response that ends a sample.
        outputs = {"return_token_ids": token_ids, "return_usage": True, "return_logprobs": logprobs}
        return json.dumps({**given, **outputs, "return_finish_reason": "last"})


def request_for_requests(model: str) -> Request:
    """A request that asks which requests wait or run; its answer is a text, for `read_unfinished_requests`."""
    return Request(model, "text_input", "", {}, stream=False, asks_for_requests=True)


def make_request(
    model: str, prompt: Prompt | None, messages: Sequence[Message] | None, sampling: Sampling, *, stream: bool
) -> Request:
    """Check what a caller gave.

    Raises:
        TypeError: a sampling key that does not exist, or not exactly one of `prompt` and `messages`.
        InvalidRequest: a value that JSON cannot hold, or half a character in the prompt.
    """
    if (prompt is None) == (messages is None):
        raise TypeError("give either a prompt or messages")
    if unknown := sampling.keys() - Sampling.__optional_keys__:
        raise TypeError(f"no such sampling parameter: {', '.join(sorted(unknown))}")
    named = {key: value for key, value in sampling.items() if key != "sampling_parameters"}
    parameters = {**sampling.get("sampling_parameters", {}), **named}
    try:
        json.dumps(parameters, allow_nan=False)
        written = None if messages is None else json.dumps(messages, allow_nan=False)
        if isinstance(prompt, str):
            prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the prompt is no text of whole characters: {error}") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the request can't be written as JSON: {error}") from None
    if written is not None:
        return Request(model, "messages", written, parameters, stream)
    assert prompt is not None
    return Request(model, "text_input" if isinstance(prompt, str) else "input_ids", prompt, parameters, stream)
