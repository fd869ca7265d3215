"""The gateway's responses, as OpenAI defines them."""

from typing import Literal, NotRequired

# pydantic supports the standard library's TypedDict only from Python 3.12 on.
from typing_extensions import TypedDict


class Model(TypedDict):
    """A model that the gateway serves, as OpenAI's API and Anthropic's describe one."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    """Anthropic's name of `object`."""
    display_name: str
    """The id, which Anthropic's API shows under this name, too."""
    created: int
    created_at: str
    """`created` as Anthropic's API has it, in RFC 3339."""
    lifecycle: Literal["active"]
    owned_by: str
    max_model_len: NotRequired[int]
    """The length of the context, as vLLM has it. Absent as long as the server has not told it."""
    max_input_tokens: NotRequired[int]
    """The same, as Anthropic's API has it."""
    root: str
    """The model's name, as vLLM has it; of a LoRA adapter, the name of the model that it changes."""
    parent: NotRequired[str]
    """Of a LoRA adapter: the model that it changes, as vLLM has it."""


class ModelList(TypedDict):
    """The list of models. It has one page, as Anthropic's fields say."""

    object: Literal["list"]
    data: list[Model]
    has_more: Literal[False]
    first_id: str
    last_id: str


class Load(TypedDict):
    """How busy an engine is."""

    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float


class Loads(TypedDict):
    """How busy all engines are, of which there is one."""

    timestamp: float
    version: str
    dp_rank_count: int
    loads: list[Load]
    aggregate: Load


class ServerInfo(TypedDict):
    """What routers want to know of a server. The gateway knows no path of the model, so its name stands for it."""

    served_model_name: str
    model_path: str
    tokenizer_path: str
    tp_size: int
    dp_size: int
    version: str


class CompletionTokensDetails(TypedDict):
    """What became of the drafted tokens, where an answer was predicted. They are no tokens of the answer."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(TypedDict):
    """Where the tokens of a prompt came from."""

    cached_tokens: int
    """Those that the server had in its prefix cache."""


class UsageCount(TypedDict):
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class CompletionLogprobs(TypedDict):
    """Log-probabilities of an answer, one list element per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """null for the first token of an echoed prompt, and so below."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """The log-probability of a token at a place of the prompt, as vLLM has it."""

    logprob: float
    rank: int
    """1 for the likeliest token."""
    decoded_token: str


class CompletionChoice(TypedDict):
    """One answer, or the new piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    """As in vLLM: which text of `stop` or token of `stop_token_ids` ended the answer, if one did."""
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]
    """As in vLLM: for each token of the prompt but the first, which has null, tokens by their ids."""


class Completion(TypedDict):
    """The answers to POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageCount


class EmbeddingItem(TypedDict):
    """The embedding of one input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """Numbers, or the bytes of little-endian float32 numbers in base64."""


class PromptCount(TypedDict):
    """The number of tokens of a request that generates nothing."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """The answer to POST /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: PromptCount


class ClassItem(TypedDict):
    """How likely the classes are for one input."""

    index: int
    label: str
    """The likeliest class."""
    probs: list[float]
    num_classes: int


class Classification(TypedDict):
    """The answer to POST /classify."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ClassItem]
    usage: PromptCount


class Score(TypedDict):
    """How well a document answers a query."""

    index: int
    object: Literal["score"]
    score: float


class Scores(TypedDict):
    """The answer to POST /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptCount


class RankedText(TypedDict):
    """The text of a document."""

    text: str


class Ranked(TypedDict):
    """A document, and how well it answers the query."""

    index: int
    """Its place in the request."""
    relevance_score: float
    document: NotRequired[RankedText]


class Reranking(TypedDict):
    """The answer to POST /v1/rerank."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    results: list[Ranked]
    usage: PromptCount


class LikelyToken(TypedDict):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenToken(LikelyToken):
    """A token of the answer, and the likeliest tokens at its position."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(TypedDict):
    """Log-probabilities of the tokens of an answer."""

    content: list[ChosenToken]


class CalledFunction(TypedDict):
    """The function of a call, and its arguments as JSON."""

    name: str
    arguments: str


class CallOfAnswer(TypedDict):
    """A tool call of the model."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(TypedDict):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    """The same by the name that vLLM gives it."""
    tool_calls: NotRequired[list[CallOfAnswer]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    """As in vLLM: which text of `stop` or token of `stop_token_ids` ended the answer, if one did."""
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """The answers to POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageCount
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]
    """As in a completion."""


class Tokenization(TypedDict):
    """The tokens of a prompt, as vLLM has it."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenization(TypedDict):
    """The text of tokens, as vLLM has it."""

    prompt: str


class ErrorDetail(TypedDict):
    """The details of an error."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """The body of every error response."""

    error: ErrorDetail


class Health(TypedDict):
    """The model takes requests."""

    status: Literal["ready"]
