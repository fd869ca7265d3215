"""Values from a model's generation_config for the fields that a request leaves out."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 16
_SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class GenerationDefaults:
    """Defaults of one model. Sampling is greedy unless the generation_config sets `do_sample`."""

    max_tokens: int
    sampling: Mapping[str, float]
    """Values of temperature, top_k, top_p and min_p for a request that gives none of these."""
    repetition_penalty: float

    @classmethod
    def of(cls, generation_config: Mapping[str, Any]) -> "GenerationDefaults":
        """Read the content of a generation_config.json."""
        given = {name: value for name, value in generation_config.items() if value is not None}
        sampling = {name: given[name] for name in _SAMPLING_FIELDS if name in given}
        return cls(
            max_tokens=given.get("max_new_tokens", DEFAULT_MAX_TOKENS),
            sampling={"temperature": 1.0, **sampling} if given.get("do_sample") else {"temperature": 0.0},
            repetition_penalty=given.get("repetition_penalty", 1.0),
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
