"""Creates the logits processors that a request needs, in the order in which they apply."""

from collections.abc import Iterator, Sequence

from inflight.logits_processors.allowed_tokens import AllowedTokens
from inflight.logits_processors.bad_words import BadWords
from inflight.logits_processors.logit_bias import LogitBias
from inflight.logits_processors.min_tokens import MinTokens
from inflight.logits_processors.output_penalties import OutputPenalties
from inflight.logits_processors.processor import LogitsProcessor
from inflight.logits_processors.repetition_penalty import RepetitionPenalty
from inflight.sampling_params import SamplingParams


def make_processors(
    params: SamplingParams,
    *,
    prompt_ids: Sequence[int],
    stop_token_ids: frozenset[int],
    bad_words: Sequence[Sequence[int]],
    num_logits: int,
) -> tuple[LogitsProcessor, ...]:
    """Return new processors for one request. Empty if the request changes no logits.

    The tokens of `bad_words`, and those of `params`, must be below `num_logits`. Others need not be.
    """
    return tuple(_make(params, prompt_ids, stop_token_ids, bad_words, num_logits))


def _make(
    params: SamplingParams,
    prompt_ids: Sequence[int],
    stop_token_ids: frozenset[int],
    bad_words: Sequence[Sequence[int]],
    num_logits: int,
) -> Iterator[LogitsProcessor]:
    if params.repetition_penalty not in (None, 1.0):
        seen = [token for token in prompt_ids if token < num_logits]
        yield RepetitionPenalty(params.repetition_penalty or 1.0, seen)
    if params.presence_penalty or params.frequency_penalty:
        yield OutputPenalties(params.presence_penalty, params.frequency_penalty)
    if params.logit_bias:
        yield LogitBias(params.logit_bias)
    if params.allowed_token_ids is not None:
        yield AllowedTokens(params.allowed_token_ids, num_logits)
    if bad_words:
        yield BadWords(bad_words)
    if params.min_tokens:
        # A tokenizer may name an end-of-sequence token for which the model has no logit.
        yield MinTokens(params.min_tokens, (token for token in stop_token_ids if token < num_logits))
