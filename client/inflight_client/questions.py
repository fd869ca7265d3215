"""What a client can ask of a model besides text: each question as a request, and what its answer means."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar, cast

from inflight_client.errors import ServerFault
from inflight_client.prompt import Prompt
from inflight_client.request import Message, Request, Sampling, make_request

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class UnfinishedRequest:
    """A request that is waiting or running on the server."""

    request_id: str
    """The id that the client gave it, or else the server's own."""
    tenant: str
    seconds: float
    """Seconds since its arrival."""
    output_tokens: int
    """Tokens of all its samples so far."""
    running: bool = False
    """False while it waits. False and 0, also in the next three, if the server does not say."""
    priority: int = 0
    """Its level in the queue, of which 1 is the highest; 0 without levels."""
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    """How many tokens of the prompt have gone through the model, or were in its cache."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model says of itself."""

    model: str
    """The folder or the hub id that it was loaded from."""
    vocab_size: int
    max_model_len: int
    chat_template: str | None
    """In Jinja. None if the model has none."""
    template_variables: tuple[str, ...]
    """The variables that the template reads."""
    special_tokens: Mapping[int, str]
    """The texts of the special tokens by id."""
    eos_token_ids: tuple[int, ...]
    max_draft_input_ids: int = 0
    """How many token ids a draft of an answer may have; 0 where the model takes none."""
    lora_modules: tuple[str, ...] = ()
    """The names of its LoRA adapters."""
    labels: tuple[str, ...] = ()
    """The classes that it tells apart, if it classifies."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """How far a model is that drains."""

    num_unfinished: int
    takes_requests: bool
    """For 3 seconds, only its health checks fail, so that load balancers notice. After that it takes no requests."""

    @property
    def is_complete(self) -> bool:
        """Whether the server can be stopped without losing a request."""
        return self.num_unfinished == 0 and not self.takes_requests


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokens of a prompt."""

    token_ids: tuple[int, ...]
    max_model_len: int
    """The number of tokens for which the context of the model has room."""
    end: str
    """The text of the last tokens, special tokens included."""
    token_strs: tuple[str, ...] | None
    """The tokens as the vocabulary spells them, if they were asked for."""


@dataclass(frozen=True, slots=True)
class Question(Generic[_T]):
    """A request for something else than text."""

    request: Request
    read: Callable[[Any], _T]
    """Reads the answer, which was decoded from JSON. It may raise ValueError, TypeError, KeyError or AttributeError."""

    def answer(self, texts: Sequence[str]) -> _T:
        """Read the server's answer. Raises ServerFault if it is none to this question."""
        try:
            return self.read(json.loads("".join(texts)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            asked = next(iter(self.request.flags))
            raise ServerFault(f"the server's answer to {asked} can't be read: {error!r}") from None


def unfinished_requests(model: str) -> Question[list[UnfinishedRequest]]:
    """Ask for the waiting and running requests."""
    known = [field.name for field in fields(UnfinishedRequest)]

    def read(entries: list[dict[str, Any]]) -> list[UnfinishedRequest]:
        return [UnfinishedRequest(**{name: entry[name] for name in known if name in entry}) for entry in entries]

    return Question(_request(model, "list_requests"), read)


def is_serving(model: str) -> Question[bool]:
    """Ask whether the model takes requests: its engine runs, and it does not drain."""
    return Question(_request(model, "is_serving"), lambda answer: bool(answer["is_serving"]))


def drain(model: str, operator_key: str) -> Question[DrainState]:
    """Tell the model to take no further requests."""
    question = _request(model, "drain")
    request = replace(question, flags={**question.flags, "operator_key": operator_key})
    return Question(request, lambda answer: DrainState(**answer))


def description(model: str) -> Question[ModelDescription]:
    """Ask what the model is."""

    def read(answer: dict[str, Any]) -> ModelDescription:
        known = {name: answer[name] for name in ("model", "vocab_size", "max_model_len", "chat_template")}
        special_tokens = {int(token): text for token, text in answer["special_tokens"].items()}
        return ModelDescription(
            **known,
            template_variables=tuple(answer["template_variables"]),
            special_tokens=special_tokens,
            eos_token_ids=tuple(answer["eos_token_ids"]),
            max_draft_input_ids=answer.get("max_draft_input_ids", 0),
            lora_modules=tuple(answer.get("lora_modules", ())),
            labels=tuple(answer.get("labels", ())),
        )

    return Question(_request(model, "describe_model"), read)


def chat_fields(
    tools: Sequence[Mapping[str, object]] | None,
    chat_template_kwargs: Mapping[str, object] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> Sampling:
    """Return what belongs to a chat besides its messages, as far as it is given."""
    given = {
        "tools": tools,
        "chat_template_kwargs": chat_template_kwargs,
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }
    return cast(Sampling, {name: value for name, value in given.items() if value is not None})


def tokens(
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    chat: Sampling,
    *,
    add_special_tokens: bool,
    return_token_strs: bool,
    tenant: str | None,
) -> Question[Tokenization]:
    """Ask for the tokens of a prompt. Raises what `make_request` raises."""
    flags = {"add_special_tokens": add_special_tokens, "return_token_strs": return_token_strs} | _of(tenant)
    request = _request(model, "tokenize", prompt, messages, chat, flags)

    def read(answer: dict[str, Any]) -> Tokenization:
        strs = tuple(answer["token_strs"]) if return_token_strs else None
        return Tokenization(tuple(answer["token_ids"]), answer["max_model_len"], answer["end"], strs)

    return Question(request, read)


def text_of(model: str, token_ids: Sequence[int], tenant: str | None) -> Question[str]:
    """Ask for the text of some tokens."""
    return Question(_request(model, "detokenize", token_ids, flags=_of(tenant)), lambda answer: str(answer["text"]))


def _of(tenant: str | None) -> dict[str, bool | str]:
    return {} if tenant is None else {"tenant": tenant}


def _request(
    model: str,
    question: str,
    prompt: Prompt | None = "",
    messages: Sequence[Message] | None = None,
    sampling: Sampling | None = None,
    flags: Mapping[str, bool | str] | None = None,
) -> Request:
    request = make_request(model, prompt, messages, sampling or {}, stream=False)
    return replace(request, flags={question: True, **(flags or {})})
