"""Sampling parameters of one request. They are checked when the object is created."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from inflight.errors import InvalidRequest
from inflight.structured_outputs import StructuredOutputs

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_BAD_WORDS = 128
MAX_TEXT_CHARACTERS = 1024
"""Maximum length of a stop string and of a bad word."""
MAX_BIASES = 1024
MAX_LOGPROB_TOKENS = 128
MAX_STOP_TOKENS = 1024
MAX_ALLOWED_TOKENS = 1024
MAX_SEED = 2**64 - 1
MAX_BEAMS = 16
MAX_LENGTH_PENALTY = 100
NEVER = "never"
"""A value of `early_stopping`."""
ROOM_FOR_ALL = -1
"""Value of `max_tokens` that means: as many tokens as the context and the KV cache allow."""

_NEUTRAL_FOR_BEAMS: dict[str, tuple[Any, ...]] = {
    "temperature": (None, 0, 1),
    "top_k": (None, 0, -1, 1),
    "top_p": (None, 1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "seed": (None,),
    "stop": ((),),
    "include_stop_str_in_output": (False,),
    "bad_words": ((),),
    "bad_words_ids": ((),),
    "logit_bias": ({},),
    "allowed_token_ids": (None,),
    "logprobs": (None,),
    "logprob_token_ids": ((),),
    "prompt_logprobs": (None,),
    "structured_outputs": (None,),
}
"""With which values of other parameters a beam search can be asked for."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling of one request. `None` means the value in the model's generation_config, or else the default given here.

    Raises:
        InvalidRequest: a value is out of its bounds; the message names the field, the value and the bound.
    """

    max_tokens: int | None = None
    """Maximum number of tokens to generate. -1: as many as the context and the KV cache allow. 0: none, where
    `prompt_logprobs` asks for scores of the prompt. Default: the model's, or 16."""

    min_tokens: int = 0
    """Number of tokens before an end-of-sequence token, a stop token or a stop string may end the output."""

    temperature: float | None = None
    """Divides the logits; 0 is greedy. Default: the model's; if that asks for no sampling, 0, or 1 where the
    request gives `top_k`, `top_p` or `min_p`."""

    top_k: int | None = None
    """Sample among the k most likely tokens. 0 or -1: among all."""

    top_p: float | None = None
    """Sample among the most likely tokens whose probabilities add up to p (nucleus sampling)."""

    min_p: float | None = None
    """Leave out tokens whose probability is below this share of the most likely token's."""

    repetition_penalty: float | None = None
    """Above 1, tokens of the prompt and the output become less likely (CTRL, arXiv 1909.05858)."""

    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the output contains."""

    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each time that the output contains it."""

    seed: int | None = None
    """The same seed and request give the same tokens, whatever else is in the batch, unless rounding depends on it.
    Default: random."""

    stop: tuple[str, ...] = ()
    """Texts that end the output; at most 16. They are not part of it unless `include_stop_str_in_output` is true."""

    include_stop_str_in_output: bool = False
    """Leave the stop string, or the stop token, that ends the output in its text."""

    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the output, in addition to the model's end-of-sequence tokens; at most 1024."""

    bad_words: tuple[str, ...] = ()
    """Texts that the output must not contain; at most 128. They are matched by their tokens, with and without a
    leading space."""

    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that the output must not contain; at most 128. The name is transformers'."""

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Numbers from -100 to 100 that are added to the logits of these tokens; at most 1024."""

    allowed_token_ids: tuple[int, ...] | None = None
    """The output consists of these tokens only; at most 1024. A token that ends the output must be among them, too, if
    it may end otherwise than by its length. Default: all tokens."""

    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""

    skip_special_tokens: bool = True
    """Leave special tokens out of the text. Some models begin tool calls and thoughts with special tokens."""

    logprobs: int | None = None
    """Report the log-probabilities of each output token and of this many most likely tokens, at most 20, before
    penalties and temperature."""

    logprob_token_ids: tuple[int, ...] = ()
    """Report the log-probabilities of these tokens at each output position, at most 128, in place of the most likely
    ones: `logprobs` becomes 0. So labels can be compared that are not likely."""

    prompt_logprobs: int | None = None
    """Report the log-probabilities of each prompt token but the first, and of this many most likely tokens at its
    position, at most 20. Such a request computes its whole prompt, even if the prefix cache holds a part of it."""

    structured_outputs: StructuredOutputs | None = None
    """A JSON schema, a regular expression, a list of choices, a grammar or a structural tag that the output follows.
    The output ends where nothing can follow. If `max_tokens` cuts it off, the finish reason is `length`."""

    beam_width: int = 1
    """Number of beams of a beam search, at most 16; 1: no beam search. It is as `num_beams` in transformers, and does
    not go together with what changes or chooses tokens otherwise."""

    length_penalty: float = 1.0
    """The score of a beam is its log-probability divided by its length to this power."""

    early_stopping: bool | str = False
    """When a beam search ends: true as soon as `beam_width` outputs have ended, false when hardly any beam can become
    better than these, "never" when none can."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _texts("stop", self.stop, MAX_STOP_STRINGS))
        object.__setattr__(self, "bad_words", _texts("bad_words", self.bad_words, MAX_BAD_WORDS))
        object.__setattr__(self, "bad_words_ids", _sequences("bad_words_ids", self.bad_words_ids))
        object.__setattr__(self, "stop_token_ids", _items("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logprob_token_ids", _items("logprob_token_ids", self.logprob_token_ids))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _items("allowed_token_ids", self.allowed_token_ids))
            _check_tokens("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKENS, fewest=1)
        if self.max_tokens != ROOM_FOR_ALL:
            _check_max_tokens(self.max_tokens, self.prompt_logprobs)
        _within("min_tokens", self.min_tokens, 0, None, whole=True, optional=False)
        _within("temperature", self.temperature, 0, None)
        _within("top_k", self.top_k, -1, None, whole=True)
        _within("top_p", self.top_p, 0, 1, open_low=True)
        _within("min_p", self.min_p, 0, 1)
        _within("repetition_penalty", self.repetition_penalty, 0, None, open_low=True)
        _within("presence_penalty", self.presence_penalty, -2, 2, optional=False)
        _within("frequency_penalty", self.frequency_penalty, -2, 2, optional=False)
        _within("seed", self.seed, 0, MAX_SEED, whole=True)
        _within("logprobs", self.logprobs, 0, MAX_LOGPROBS, whole=True)
        _within("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS, whole=True)
        _check_tokens("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS)
        _check_tokens("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKENS)
        if self.logprob_token_ids:
            object.__setattr__(self, "logprobs", 0)
        _check_bias(self.logit_bias)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; it must be true or false")
        if self.max_tokens not in (None, ROOM_FOR_ALL) and self.min_tokens > self.max_tokens:
            raise InvalidRequest(f"min_tokens is {self.min_tokens}; it must not be over max_tokens, {self.max_tokens}")
        _within("beam_width", self.beam_width, 1, MAX_BEAMS, whole=True, optional=False)
        _within("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, optional=False)
        if self.early_stopping not in (True, False, NEVER):
            raise InvalidRequest(f'early_stopping is {self.early_stopping!r}; it must be true, false or "never"')
        if self.beam_width > 1:
            _check_beams(self)
        else:
            _check_no_beams(self)


def _within(
    name: str,
    value: Any,
    low: float,
    high: float | None,
    *,
    open_low: bool = False,
    whole: bool = False,
    optional: bool = True,
    or_else: str | None = None,
) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        raise InvalidRequest(f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number")
    # Unlike math.isfinite, comparisons accept integers of any size. NaN fails every comparison.
    given: Any = value
    over_low = given > low if open_low else given >= low
    if over_low and (given < math.inf if high is None else given <= high):
        return
    bound = f"over {low}" if open_low else f"at least {low}"
    if high is not None:
        bound += f" and at most {high}"
    if or_else is not None:
        bound += f", or {or_else}"
    raise InvalidRequest(f"{name} is {value}; it must be {bound}")


def _check_max_tokens(max_tokens: int | None, prompt_logprobs: int | None) -> None:
    or_else = "-1, for all that there is room for"
    if prompt_logprobs is None:
        or_else += ", or 0 where prompt_logprobs is given"
    _within("max_tokens", max_tokens, 1 if prompt_logprobs is None else 0, None, whole=True, or_else=or_else)


def _check_tokens(name: str, tokens: tuple[Any, ...], most: int, *, fewest: int = 0) -> None:
    if len(tokens) > most:
        raise InvalidRequest(f"{name} has {len(tokens)} tokens; it must have at most {most}")
    if len(tokens) < fewest:
        raise InvalidRequest(f"{name} has {len(tokens)} tokens; it must have at least {fewest}")
    for token in tokens:
        _within(name, token, 0, None, whole=True, optional=False)


def _check_bias(logit_bias: Mapping[int, float]) -> None:
    if not isinstance(logit_bias, Mapping):
        raise InvalidRequest(f"logit_bias is {logit_bias!r}; it must be a mapping of token ids to numbers")
    if len(logit_bias) > MAX_BIASES:
        raise InvalidRequest(f"logit_bias has {len(logit_bias)} tokens; it must have at most {MAX_BIASES}")
    for token, bias in logit_bias.items():
        _within("logit_bias token", token, 0, None, whole=True, optional=False)
        _within(f"logit_bias of token {token}", bias, -100, 100, optional=False)


def _check_beams(params: SamplingParams) -> None:
    """Refuse what a beam search cannot heed. A temperature of 1 leaves the log-probabilities as they are."""
    for name, neutral in _NEUTRAL_FOR_BEAMS.items():
        value = getattr(params, name)
        if value not in neutral:
            wanted = " or ".join("left out" if each in (None, (), {}) else str(each) for each in neutral)
            found = f"has {value.kind}" if isinstance(value, StructuredOutputs) else f"is {value!r}"
            raise InvalidRequest(f"{name} {found}; it must be {wanted} with beam_width {params.beam_width}")


def _check_no_beams(params: SamplingParams) -> None:
    for name, value, neutral in (
        ("length_penalty", params.length_penalty, 1),
        ("early_stopping", params.early_stopping, False),
    ):
        if value != neutral:
            raise InvalidRequest(f"{name} is {value!r}; it needs a beam_width of at least 2")


def _texts(name: str, value: Any, max_count: int) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else _items(name, value)
    if len(texts) > max_count:
        raise InvalidRequest(f"{name} has {len(texts)} texts; it must have at most {max_count}")
    for text in texts:
        if not isinstance(text, str):
            raise InvalidRequest(f"{name} holds {text!r}; it must hold texts")
        if not text:
            raise InvalidRequest(f"{name} holds an empty text; each must have at least 1 character")
        if len(text) > MAX_TEXT_CHARACTERS:
            raise InvalidRequest(
                f"{name} holds a text of {len(text)} characters; each must have at most {MAX_TEXT_CHARACTERS}"
            )
    return texts


def _sequences(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    sequences = tuple(_items(f"{name} item", item) for item in _items(name, value))
    if len(sequences) > MAX_BAD_WORDS:
        raise InvalidRequest(f"{name} has {len(sequences)} sequences; it must have at most {MAX_BAD_WORDS}")
    for sequence in sequences:
        _check_tokens(f"{name} item", sequence, MAX_TEXT_CHARACTERS, fewest=1)
    return sequences


def _items(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} is {value!r}; it must be a list")
    return tuple(value)
