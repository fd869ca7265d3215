"""The body of POST /v1/embeddings, and the fields of all requests that generate nothing."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from inflight_client import Prompt, Queueing
from inflight_gateway.schemas import Authored, Count, Input, Truncation, several
from inflight_gateway.strict import Always, Strict


class Cut(Strict):
    """The fields that say how much of an input is read, where nothing is generated."""

    truncate_prompt_tokens: Truncation = None
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="As in vLLM: left keeps the end of an input, right its beginning. Default: right."
    )

    @property
    def truncation(self) -> Queueing:
        """What the server is told of it."""
        if self.truncate_prompt_tokens is None:
            return {}
        return {
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
            "truncation_side": self.truncation_side or "right",
        }


class EmbeddingRequest(Authored, Cut):
    """The body of POST /v1/embeddings."""

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = Field(None, description="So many of the first numbers, normalised again.")

    # Fields of this server that OpenAI does not have.
    add_special_tokens: Always | None = None
    pooling: Literal["last", "mean"] | None = Field(None, description="Default: last.")
    normalize: bool | None = Field(None, description="Default: true.")
    use_activation: bool | None = Field(None, description="vLLM's name of normalize.")
    # With these values they ask for what there is.
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None

    @field_validator("use_activation")
    @classmethod
    def _same_as_normalize(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        other = info.data.get("normalize")
        if value is not None and other not in (None, value):
            raise ValueError(f"it must be normalize, {other}, or absent: both are names of one field")
        return value

    @property
    def is_normalized(self) -> bool:
        """Whether each embedding has the length 1."""
        return self.normalize is not False and self.use_activation is not False

    @property
    def inputs(self) -> list[Prompt]:
        """The inputs as a list, even if there is only one."""
        return several(self.input)
