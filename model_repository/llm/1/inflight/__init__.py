"""In-flight batching of Hugging Face decoders: engine, scheduler and paged KV cache.

This package imports nothing from Triton.
"""

from typing import TYPE_CHECKING, Any

from inflight.config import EngineConfig
from inflight.errors import EngineDead, InvalidRequest, QueueFull, UnsupportedModel
from inflight.pooling_params import PoolingParams
from inflight.prompts import EmbedsPrompt, ImagePrompt
from inflight.request_options import RequestOptions
from inflight.sampling_params import SamplingParams
from inflight.structured_outputs import StructuredOutputs
from inflight.text.text_pair import TextPair

if TYPE_CHECKING:
    from inflight.engine import Engine
    from inflight.request_output import RequestOutput

__all__ = [
    "EmbedsPrompt",
    "Engine",
    "EngineConfig",
    "EngineDead",
    "ImagePrompt",
    "InvalidRequest",
    "PoolingParams",
    "QueueFull",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "TextPair",
    "UnsupportedModel",
]


def __getattr__(name: str) -> Any:
    """Import names that need torch on first access, so that the scheduler and the KV cache work without torch."""
    if name == "Engine":
        from inflight.engine import Engine

        return Engine
    if name == "RequestOutput":
        from inflight.request_output import RequestOutput

        return RequestOutput
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
