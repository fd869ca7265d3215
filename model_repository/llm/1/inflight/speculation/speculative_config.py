"""The setting `speculative_config`, with vLLM's names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.json_setting import read_json_setting

NGRAM = "ngram"
SUFFIX = "suffix"
DRAFT_MODEL = "draft_model"
METHODS = (NGRAM, SUFFIX, DRAFT_MODEL)

MAX_DRAFT = 64
"""Maximum number of tokens in a draft."""
_MAX_MATCH = 64


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """How drafts are made.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    method: str = NGRAM
    """`ngram` finds the newest tokens of a request earlier in the request, and takes what followed them there (prompt
    lookup decoding). `suffix` also looks in recent outputs of the same tenant (SuffixDecoding, NeurIPS'25).
    `draft_model` asks a smaller model (Leviathan et al., ICML'23)."""

    model: str | None = None
    """Folder or hub id of the draft model. Its tokenizer has the same tokens as the one of the served model."""

    num_speculative_tokens: int = 15
    """Maximum number of drafted tokens of a request in a step."""

    adaptive: bool = True
    """Choose the number of drafted tokens by what a step takes and by how many were right so far, 0 included. If false,
    drafts are as long as possible."""

    prompt_lookup_max: int = 16
    """Maximum number of newest tokens that are compared with earlier ones. More of them make a better prediction."""

    prompt_lookup_min: int = 2
    """Minimum number of newest tokens that must occur earlier."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"speculative_config: method is {self.method!r}; it must be one of {', '.join(METHODS)}")
        if (self.model is not None) != (self.method == DRAFT_MODEL):
            raise ValueError(
                f"speculative_config: method is {self.method!r} and model is {self.model!r}; the method "
                f"{DRAFT_MODEL!r} needs a model, and the other ones have none"
            )
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ValueError(f"speculative_config: model is {self.model!r}; it must be a folder or a hub id")
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"speculative_config: adaptive is {self.adaptive!r}; it must be true or false")
        for name, low, high in (
            ("num_speculative_tokens", 1, MAX_DRAFT),
            ("prompt_lookup_min", 1, _MAX_MATCH),
            ("prompt_lookup_max", 1, _MAX_MATCH),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(
                    f"speculative_config: {name} is {value!r}; it must be a whole number from {low} to {high}"
                )
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError(
                f"speculative_config: prompt_lookup_max is {self.prompt_lookup_max}; it must be at least "
                f"prompt_lookup_min, {self.prompt_lookup_min}"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "SpeculativeConfig":
        """Return the config with these values.

        Raises:
            ValueError: as above, or a name is unknown.
        """
        return read_json_setting(cls, "speculative_config", _with_method(values))


def _with_method(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config with a model and no method means a draft model, as in vLLM."""
    return {"method": DRAFT_MODEL, **values} if values.get("model") is not None else values
