"""Requests as OpenAI defines them, with additional fields of this server. Errors name unsupported fields."""

from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from inflight_client import Prompt
from inflight_gateway.cache_hints import CacheOptions
from inflight_gateway.guided_fields import GuidedFields
from inflight_gateway.strict import Never, Strict, at_most

MAX_SAMPLES = 16
MAX_PROMPTS = 64
MAX_INPUTS = 2048
"""OpenAI's bound on the inputs of one request for embeddings."""
MAX_PARTS = 4096
"""In the content of one message."""
MAX_BIASES = 1024
"""The server's bound."""
MAX_STOPS = 16
"""OpenAI has at most 4."""
MAX_TEXT_CHARACTERS = 1024
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default."""
ALL_TOKENS = -1
"""The server's value for as many tokens as the context has room for. This is OpenAI's default for a chat."""

_INT32_MAX = 2**31 - 1


def _prompt_form(value: Any) -> str:
    """Return which of the four forms a prompt has. The first element of a list decides.

    Without this discriminator, pydantic reports an invalid prompt with four errors, one per form.
    """
    if not isinstance(value, list):
        return "a text"
    first = value[0] if value else None
    if isinstance(first, list):
        return "a list of lists"
    return "a list of tokens" if isinstance(first, int) and not isinstance(first, bool) else "a list"


def text_or_list(value: Any) -> str:
    """Return which of two forms a value has, for a discriminator."""
    return "a list" if isinstance(value, list) else "a text"


Text = Annotated[str, Field(min_length=1)]
ShortText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS)]
_TokenId = Annotated[int, Field(ge=0, le=_INT32_MAX)]
TokenIds = Annotated[list[_TokenId], Field(min_length=1, fail_fast=True)]
Count = Annotated[int, Field(ge=1, le=_INT32_MAX)]
Metadata = Annotated[dict[str, str], at_most(1024)]
"""Ignored. OpenAI takes at most 16 entries."""
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_WrittenTokenId = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]

_Prompt = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("a list")]
    | Annotated[TokenIds, Tag("a list of tokens")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("a list of lists")],
    Discriminator(_prompt_form),
]
Input = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("a list")]
    | Annotated[TokenIds, Tag("a list of tokens")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("a list of lists")],
    Discriminator(_prompt_form),
]
_Stop = Annotated[
    Annotated[ShortText, Tag("a text")] | Annotated[list[ShortText], Field(max_length=MAX_STOPS), Tag("a list")],
    Discriminator(text_or_list),
]


def several(prompts: Any) -> list[Prompt]:
    """Return prompts as a list, even if there is only one."""
    are_several = isinstance(prompts, list) and not isinstance(prompts[0], int)
    return cast(list[Prompt], prompts if are_several else [prompts])


class StreamOptions(Strict):
    """What a stream contains in addition to the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="As in vLLM: every chunk holds the usage so far.")
    include_obfuscation: Never | None = None


Truncation = Annotated[
    Annotated[int, Field(ge=-1, le=_INT32_MAX)] | None,
    Field(description="As in vLLM: of a longer prompt, keep only so many tokens; -1: as many as have room."),
]


class Authored(Strict):
    """The fields that say which model a request is for, on whose behalf it runs, how urgent it is, and whose cached
    prefixes it shares."""

    model: Text | None = Field(None, description="Default: the model that is served.")
    user: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="The tenant of the request, if the gateway has no API keys. Ignored otherwise, and if empty."
    )
    priority: Annotated[int, Field(ge=1, le=_INT32_MAX, description="1 is the highest.")] | None = None
    request_class: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="One of the server's classes. The header `x-request-class` does the same for any endpoint."
    )
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="As in vLLM: only requests of the same salt share cached prefixes."
    )


class Sampled(Strict):
    """How the tokens of an answer are chosen, and what ends it, in completions, chats and responses."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    # OpenAI's seed is signed, the server's is not.
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Stop | None = None
    ignore_eos: bool | None = None


class Generation(Authored, GuidedFields, Sampled):
    """The common fields of completions and chats."""

    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    logit_bias: Annotated[dict[_WrittenTokenId, _Bias], at_most(MAX_BIASES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Fields of this server that OpenAI does not have.
    min_tokens: Annotated[int, Field(ge=0, le=_INT32_MAX)] | None = None
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = Field(None, description="Default: true. Tools and reasoning may override it.")
    bad_words: Annotated[list[ShortText], Field(max_length=128)] | None = Field(
        None, description="As in vLLM: texts that the answer must not contain."
    )
    allowed_token_ids: Annotated[list[_TokenId], Field(min_length=1, max_length=1024)] | None = Field(
        None, description="As in vLLM: the answer consists of these tokens only."
    )
    logprob_token_ids: Annotated[list[_TokenId], Field(max_length=128)] | None = Field(
        None, description="As in vLLM: log-probabilities of these tokens, in place of the likeliest. Needs logprobs."
    )
    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] | None = Field(
        None, description="Maximum number of drafted tokens in a step; 0: none. The answer is the same."
    )

    return_token_ids: bool | None = Field(
        None, description="As in vLLM: `token_ids` of each answer or chunk, and `prompt_token_ids`."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="As in vLLM: log-probabilities name tokens by their ids, as in `token_id:28`."
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None,
        description="As in vLLM: log-probabilities of the prompt's tokens, and of so many of the likeliest. Not with "
        "stream.",
    )
    use_beam_search: bool | None = Field(
        None, description="As in vLLM: `n` beams, or `best_of` in a completion. Not with stream, seed and logprobs."
    )
    length_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    early_stopping: bool | Literal["never"] | None = None

    # Clients send these fields. With the accepted values they change nothing.
    spaces_between_special_tokens: bool | None = Field(None, description="Ignored: fast tokenizers put none there.")
    store: Never | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: str | None = None

    @field_validator("stream_options")
    @classmethod
    def _only_of_streams(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("it must be absent unless stream is true")
        return value

    @field_validator("prompt_logprobs")
    @classmethod
    def _only_whole(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("stream"):
            raise ValueError("it must be absent if stream is true")
        return value

    @field_validator("use_beam_search")
    @classmethod
    def _not_in_streams(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("stream"):
            raise ValueError("it must be false or absent if stream is true")
        return value

    @property
    def num_sequences(self) -> int:
        """How many samples or beams each prompt gets."""
        return self.n or 1

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer has log-probabilities of its tokens."""
        return False

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has any log-probabilities: there can be many."""
        return self.wants_logprobs or self.prompt_logprobs is not None

    @property
    def wants_running_usage(self) -> bool:
        """Whether each chunk of the stream holds the usage so far."""
        return self.wants_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionRequest(Generation):
    """The body of POST /v1/completions."""

    prompt: _Prompt
    add_special_tokens: bool | None = Field(
        None, description="As in vLLM. False: the prompt has its special tokens, such as <s>, already. Default: true."
    )
    truncate_prompt_tokens: Truncation = None
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="As in vLLM: left keeps the end of the prompt, right its beginning. Default: left."
    )
    echo: bool | None = Field(None, description="Begin each answer with its prompt. Not with stream.")
    max_tokens: Annotated[int, Field(ge=0, le=_INT32_MAX)] | None = Field(
        None, description=f"0 only with echo. Default: {DEFAULT_COMPLETION_TOKENS}."
    )
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = Field(
        None, description="The number of beams with use_beam_search. Otherwise it must be equal to n."
    )

    @field_validator("echo")
    @classmethod
    def _no_echo_in_streams(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("stream"):
            raise ValueError("it must be false or absent if stream is true")
        return value

    @field_validator("max_tokens")
    @classmethod
    def _none_only_with_echo(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value == 0 and not info.data.get("echo"):
            raise ValueError("it must be at least 1 unless echo is true")
        return value

    @field_validator("best_of")
    @classmethod
    def _same_as_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        n = info.data.get("n") or 1
        if info.data.get("use_beam_search"):
            if value is not None and value < n:
                raise ValueError(f"it must be at least n, {n}, or absent")
        elif value is not None and value != n:
            raise ValueError(f"it must be n, {n}, or absent")
        return value

    @property
    def num_sequences(self) -> int:
        """See `Generation`."""
        return self.best_of or self.n or 1

    @property
    def wants_logprobs(self) -> bool:
        """See `Generation`."""
        return self.logprobs is not None

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts as a list, even if there is only one."""
        return several(self.prompt)
