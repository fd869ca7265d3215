"""Values from a model's generation_config for the fields that a request leaves out."""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.errors import InvalidRequest
from inflight.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 16
_SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p")
_FIELDS = (*_SAMPLING_FIELDS, "do_sample", "max_new_tokens", "repetition_penalty")
_OTHERS = (
    *("num_beams", "no_repeat_ngram_size", "min_length", "min_new_tokens", "bad_words_ids", "begin_suppress_tokens"),
    *("forced_bos_token_id", "forced_eos_token_id", "sequence_bias", "exponential_decay_length_penalty"),
    *("guidance_scale", "watermarking_config", "stop_strings"),
    *("encoder_repetition_penalty", "encoder_no_repeat_ngram_size"),
)
"""What else changes the greedy tokens of transformers' `generate`, but not ours."""
_NEUTRAL_AT_1 = ("num_beams", "guidance_scale", "encoder_repetition_penalty")
_OTHERS_IN_SAMPLING = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")
"""What else leaves tokens out of the draws of `generate`, but not out of ours. Those that are numbers between 0 and 1
count; a `top_h` of 1 does, too."""


@dataclass(frozen=True)
class GenerationDefaults:
    """Defaults of one model. Sampling is greedy unless the generation_config sets `do_sample`."""

    max_tokens: int
    sampling: Mapping[str, float]
    """Values of temperature, top_k, top_p and min_p for a request that gives none of these."""
    repetition_penalty: float
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that no output has, such as those that Gemma 4 writes around its images."""

    @classmethod
    def of(cls, generation_config: Mapping[str, Any]) -> "GenerationDefaults":
        """Read the content of a generation_config.json. What cannot be served is ignored, with a warning."""
        given = {name: value for name in _FIELDS if (value := _usable(name, generation_config.get(name))) is not None}
        sampling = {name: given[name] for name in _SAMPLING_FIELDS if name in given}
        # With a top_p of 0, transformers samples among the likeliest token alone.
        samples = given.get("do_sample", False) and generation_config.get("top_p") != 0
        _warn_of_others(generation_config)
        if samples:
            _warn_of_others_in_sampling(generation_config)
        return cls(
            max_tokens=given.get("max_new_tokens", DEFAULT_MAX_TOKENS),
            sampling={"temperature": 1.0, **sampling} if samples else {"temperature": 0.0},
            repetition_penalty=given.get("repetition_penalty", 1.0),
            suppress_tokens=_suppressed(generation_config.get("suppress_tokens")),
        )

    def fill(self, params: SamplingParams) -> SamplingParams:
        """Return `params` with every sampling field set, except `max_tokens`, which also depends on the prompt."""
        asks = any(getattr(params, name) is not None for name in _SAMPLING_FIELDS)
        defaults: Mapping[str, float] = self.sampling
        if asks and not self.sampling["temperature"]:
            defaults = {"temperature": 1.0}
        filled = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **defaults}
        filled["repetition_penalty"] = self.repetition_penalty
        missing = {name: value for name, value in filled.items() if getattr(params, name) is None}
        return dataclasses.replace(params, **missing)  # type: ignore[arg-type]


def _usable(name: str, value: Any) -> Any:
    """Return a value of a generation_config, or None if it is none that a request may have."""
    if value is None or (name == "top_p" and value == 0):
        return None
    if name == "do_sample":
        if isinstance(value, bool):
            return value
        logger.warning("the generation config: do_sample is %r; it must be true or false, so it is ignored", value)
        return None
    if name in ("top_k", "max_new_tokens") and isinstance(value, float) and value.is_integer():
        value = int(value)
    parameter = "max_tokens" if name == "max_new_tokens" else name
    try:
        SamplingParams(**{parameter: value})
    except InvalidRequest as error:
        logger.warning("the generation config: %s is ignored, because %s", name, error)
        return None
    return value


def _suppressed(value: Any) -> tuple[int, ...]:
    tokens = [] if value is None else value
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        logger.warning(
            "the generation config: suppress_tokens is %r; it must be a list of token ids, so it is ignored", value
        )
        return ()
    # Some models have -1 for no token.
    return tuple(sorted({token for token in tokens if token >= 0}))


def _warn_of_others(generation_config: Mapping[str, Any]) -> None:
    for name in _OTHERS:
        value = generation_config.get(name)
        if value and not (name in _NEUTRAL_AT_1 and value == 1):
            logger.warning(
                "the generation config: %s is %r, which is ignored, so greedy tokens may differ from transformers'",
                name,
                value,
            )


def _warn_of_others_in_sampling(generation_config: Mapping[str, Any]) -> None:
    for name in _OTHERS_IN_SAMPLING:
        value = generation_config.get(name)
        is_neutral = value is None or (isinstance(value, int | float) and not 0 < value < 1)
        if not is_neutral or (name == "top_h" and value == 1):
            logger.warning(
                "the generation config: %s is %r, which is ignored, so sampled tokens may be some that transformers "
                "leaves out",
                name,
                value,
            )
