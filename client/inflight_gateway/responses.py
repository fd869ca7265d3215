"""What the gateway answers, as OpenAI defines it."""

from typing import Literal

# pydantic reads those of the standard library from Python 3.12 on.
from typing_extensions import TypedDict


class Model(TypedDict):
    """A model that can be asked."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(TypedDict):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class UsageCount(TypedDict):
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(TypedDict):
    """Log-probabilities of an answer's tokens, a list element for each."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One answer, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(TypedDict):
    """The answers to POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageCount


class LikelyToken(TypedDict):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenToken(LikelyToken):
    """A token of the answer, and the likeliest in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(TypedDict):
    """Log-probabilities of an answer's tokens."""

    content: list[ChosenToken]


class AnswerMessage(TypedDict):
    """The model's message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(TypedDict):
    """The answers to POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageCount


class ErrorDetail(TypedDict):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """The body of every response that is no success."""

    error: ErrorDetail


class Health(TypedDict):
    """That the model takes requests."""

    status: Literal["ready"]
