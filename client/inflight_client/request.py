"""Requests to a model."""

import base64
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Required, TypeAlias, TypedDict, cast

from inflight_client.embeds import Embeds
from inflight_client.errors import InvalidRequest
from inflight_client.prompt import Prompt, TextPair, checked
from inflight_client.schema import AnswerSchema, Schema

_PER_SECOND = {"deadline_ms": 1_000, "timeout": 1_000_000}
"""The fields that limit a request's time, and their units per second."""

_READ_HERE = frozenset({"sampling_parameters", "schema", "images", "prompt_embeds"})
"""The arguments that become something else than sampling parameters."""

_SAMPLED_PARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
"""A `traceparent` whose last bit says that the caller's span is recorded."""


class Message(TypedDict, total=False):
    """One message of a chat. It must have a role and, unless it has tool calls, a content."""

    role: Required[str]
    # A text, or a list of parts: {"type": "text", "text": ...}, and {"type": "image"} in the place of an image.
    content: str | Sequence[Mapping[str, str]] | None
    name: str
    reasoning_content: str
    # Of an assistant: what it called, as OpenAI has it.
    tool_calls: Sequence[Mapping[str, object]]
    # Of a tool: the call that the content answers.
    tool_call_id: str


AnyPrompt: TypeAlias = Prompt | TextPair | Sequence[Message]
"""Text, token ids, a query and a document, or a chat."""


class Tracing(TypedDict, total=False):
    """The caller's OpenTelemetry context, as in the W3C headers of these names. The server's spans belong to it."""

    traceparent: str
    tracestate: str


class Queueing(Tracing, total=False):
    """The place of a request on the server, its time, its adapter, and how much of its prompt is used."""

    # Priority in the waiting queue; 1 is the highest.
    priority: int
    # The name of the user or group on whose behalf the request runs. Fair scheduling divides the server among tenants.
    tenant: str
    # The class of the request, one of the server's `request_classes`. Default: that of its tenant or its priority.
    request_class: str
    # The caller's own name of the request, for the server's trace, spans and log, and `inflight top`.
    client_request_id: str
    # The request shares cached prefixes only with requests of the same salt.
    cache_salt: str
    # The LoRA adapter that changes the model for the request, one of the server's `lora_modules`.
    lora_name: str
    # Of a longer prompt, keep only so many tokens at its end; -1: as many as leave room for the answer. Not for chats.
    truncate_prompt_tokens: int
    # "right": keep so many at its beginning instead.
    truncation_side: Literal["left", "right"]
    # After this time the server ends the answer with the tokens so far and the finish reason "deadline".
    deadline_ms: int


class Sampling(Queueing, total=False):
    """The sampling parameters of a request. The model's own default applies to each parameter that is not given."""

    # Files of the images in the prompt or the messages, one for each place, in order: PNG, JPEG, WebP, GIF or BMP.
    images: Sequence[bytes]
    # An array [rows, width] of float32 or float16, such as numpy's, in place of tokens of the prompt. Only over gRPC.
    prompt_embeds: object

    # -1: as many as the context has room for. 0: none, where `prompt_logprobs` asks for scores of the prompt.
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
    # True: the stop string or the stop token that ends an answer is part of its text.
    include_stop_str_in_output: bool
    stop_token_ids: Sequence[int]
    bad_words: Sequence[str]
    # The same as token ids, each one a sequence.
    bad_words_ids: Sequence[Sequence[int]]
    logit_bias: Mapping[int, float]
    # The answer consists of these tokens only. Without one that ends it, it ends by its length.
    allowed_token_ids: Sequence[int]
    ignore_eos: bool
    # Tools that the chat template shows to the model, as OpenAI has them. Only with messages.
    tools: Sequence[Mapping[str, object]]
    # Variables for the chat template, such as enable_thinking. Only with messages.
    chat_template_kwargs: Mapping[str, object]
    # True: the answer continues the last message, which is the assistant's. Only with messages.
    continue_final_message: bool
    # False: the template does not begin a message of the assistant. Only with messages.
    add_generation_prompt: bool
    # What the answer must be: an object with one of json, json_object, regex, choice, grammar and structural_tag.
    structured_outputs: Mapping[str, object]
    # The same as a JSON schema, a pydantic model or a dataclass. The answer has it as `parsed`.
    schema: Schema
    # False: the text of the answer includes special tokens.
    skip_special_tokens: bool
    # A beam search: the number of beams. All of them are returned, or else the `n` best. Not for streams.
    beam_width: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    # Return the log-probability of each chosen token, and of this many likeliest tokens.
    logprobs: int
    # Return the log-probabilities of these tokens at each position of the answer, in place of the likeliest.
    logprob_token_ids: Sequence[int]
    # Return the log-probability of each token of the prompt but the first, and of this many likeliest tokens.
    prompt_logprobs: int
    # Return the prompt as the model read it, with its tokens; "ids": with its token ids alone.
    return_prompt: bool | Literal["ids"]
    # Return the token ids in the chunks of a stream. This costs some time per chunk. Whole answers always have them.
    return_token_ids: bool
    # Token ids of what the answer may be, or of a text that it may copy from. It comes sooner where they are right.
    # `tokenize(text, add_special_tokens=False)` returns those of a text.
    draft_input_ids: Sequence[int]
    # Maximum number of drafted tokens in a step; 0: none. The answer is the same.
    num_speculative_tokens: int
    # Return what the server did for each answer: drafted tokens, reused blocks and times.
    return_perf_metrics: bool
    target_ttft_ms: int
    # Further parameters, sent unchanged. The keys above take precedence.
    sampling_parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request, independent of the transport."""

    model: str
    prompt_field: str
    """Name of the input that holds the prompt: `text_input`, `input_ids`, `messages` or `embedding_request`. Empty if
    the prompt is embeddings alone."""
    prompt: Prompt
    """Text, token ids, or the messages or the embedding request as JSON."""
    parameters: Mapping[str, object]
    stream: bool
    schema: AnswerSchema | None = None
    """How answers are parsed."""
    images: tuple[bytes, ...] = ()
    """Files of the images in the prompt."""
    embeds: Embeds | None = None
    """Those in the prompt."""
    flags: Mapping[str, bool | str] = field(default_factory=dict)
    """Request parameters, with which a request asks for other things than text; see `questions`."""

    @property
    def image_texts(self) -> list[str]:
        """The images as base64, as the model takes them."""
        return [base64.b64encode(image).decode() for image in self.images]

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the call: the OpenTelemetry context, for Triton's own spans. The model reads the parameters."""
        parent, state = self.parameters.get("traceparent"), self.parameters.get("tracestate")
        if not isinstance(parent, str) or not _SAMPLED_PARENT.fullmatch(parent):
            return {}  # Triton 24.10 would make spans even if the caller wants none.
        headers = {"traceparent": parent}
        if isinstance(state, str) and state.isascii() and state.isprintable():
            headers["tracestate"] = state.strip()  # Spaces around the value of a header are an error.
        return headers

    @property
    def has_deadline(self) -> bool:
        """Whether the caller set `deadline_ms`, and so accepts an answer that ends early."""
        return "deadline_ms" in self.parameters

    @property
    def seconds(self) -> float:
        """The shortest of the time limits that the caller set; infinity if there is none."""
        # The server refuses a number that is too large for a float.
        bounded = {name: min(value, sys.maxsize) for name, value in self._limits().items()}
        return min((value / _PER_SECOND[name] for name, value in bounded.items()), default=math.inf)

    def after(self, seconds: float) -> "Request":
        """Return the request with `seconds` subtracted from the time limits that the caller set.

        Each limit stays at least 1, because 0 means no limit for some of them.
        """
        left = {name: max(1, value - int(seconds * _PER_SECOND[name])) for name, value in self._limits().items()}
        return replace(self, parameters={**self.parameters, **left}) if left else self

    def _limits(self) -> dict[str, int]:
        # The server refuses other types than int. For some limits, 0 means none.
        given = {name: self.parameters.get(name) for name in _PER_SECOND}
        return {name: value for name, value in given.items() if isinstance(value, int) and value > 0}

    def sampling_json(self, seconds: float) -> str:
        """Return all parameters as JSON.

        `seconds` is the time that is left for the answer. It becomes the deadline unless the caller set one.
        """
        given = {"deadline_ms": max(1, round(1000 * seconds)), **self.parameters}
        logprobs = "logprobs" in given or "logprob_token_ids" in given
        token_ids = bool(given.get("return_token_ids")) or logprobs or not self.stream
        # Each output of each response costs time, so only a response that ends a sample has a finish reason.
        outputs = {"return_token_ids": token_ids, "return_logprobs": logprobs}
        outputs |= {"return_usage": True, "return_num_cached_tokens": True, "return_stop_reason": True}
        if "prompt_logprobs" in given:
            outputs |= {"return_prompt_logprobs": True, "return_prompt": True}
        return _written({**given, **outputs, "return_finish_reason": "last"})


def make_request(
    model: str, prompt: Prompt | None, messages: Sequence[Message] | None, sampling: Sampling, *, stream: bool
) -> Request:
    """Check the caller's arguments and make a request.

    Raises:
        TypeError: a sampling parameter is unknown, or not exactly one of `prompt` and `messages` is given, or the
            schema is none, or an image is not bytes, or `prompt_embeds` is no array of rows, or the prompt is neither
            a text nor token ids.
        ImportError: the schema is a dataclass, and pydantic is not installed.
        InvalidRequest: JSON cannot represent a value, or the prompt contains a lone surrogate or a number that cannot
            be a token id.
    """
    embeds = Embeds.of(sampling["prompt_embeds"]) if "prompt_embeds" in sampling else None
    if (prompt is None) == (messages is None) and (prompt is not None or embeds is None):
        raise TypeError("give either a prompt or messages")
    if unknown := sampling.keys() - Sampling.__optional_keys__:
        raise TypeError(f"no such sampling parameter: {', '.join(sorted(unknown))}")
    named = {key: value for key, value in sampling.items() if key not in _READ_HERE}
    images = _images(sampling.get("images", ()))
    parameters = {**sampling.get("sampling_parameters", {}), **named}
    schema = None
    if "schema" in sampling:
        if "structured_outputs" in sampling:
            raise TypeError("give either a schema or structured_outputs")
        schema = AnswerSchema.of(sampling["schema"])
        parameters["structured_outputs"] = {"json": schema.json_schema}
    for name, value in parameters.items():
        _written({name: value}, name)
    if messages is not None:
        return Request(model, "messages", _written(messages, "messages"), parameters, stream, schema, images, embeds)
    if prompt is None:
        return Request(model, "", (), parameters, stream, schema, images, embeds)
    source = "text_input" if isinstance(prompt, str) else "input_ids"
    return Request(model, source, checked(prompt), parameters, stream, schema, images, embeds)


def _images(images: Sequence[bytes]) -> tuple[bytes, ...]:
    if isinstance(images, bytes) or not all(isinstance(image, bytes) for image in images):
        raise TypeError("images must be a list of files, each as bytes")
    return tuple(images)


def make_embedding_request(
    model: str, prompt: AnyPrompt, pooling_params: Mapping[str, object], queueing: Queueing
) -> Request:
    """Check the caller's arguments and make a request for an embedding, or for probabilities of classes.

    Raises:
        TypeError: an argument is unknown, or the prompt is none.
        InvalidRequest: JSON cannot represent a value, or the prompt contains a lone surrogate or a number that cannot
            be a token id.
    """
    if unknown := queueing.keys() - Queueing.__optional_keys__:
        raise TypeError(f"no such argument: {', '.join(sorted(unknown))}")
    parameters: dict[str, object] = {**queueing, "return_embedding": True}
    if isinstance(prompt, TextPair):
        given: object = {"query": checked(prompt.query), "document": checked(prompt.document)}
        if prompt.chat_template_kwargs:
            parameters["chat_template_kwargs"] = prompt.chat_template_kwargs
    elif _is_chat(prompt):
        given = prompt
    else:
        given = checked(cast(Prompt, prompt))
    asked = {"input": given, "pooling_params": pooling_params}
    for name, value in parameters.items():
        _written({name: value}, name)
    return Request(model, "embedding_request", _written(asked), parameters, stream=False)


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], Mapping)


def _written(value: object, name: str = "the request") -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name} can't be written as JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest(f"{name} can't be written as JSON: its lists and objects are too deep") from None
