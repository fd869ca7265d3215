"""Typed clients for the models of an Inflight server: `Client` for threads, `AsyncClient` for asyncio."""

from inflight_client.async_client import AsyncClient
from inflight_client.async_stream import AsyncTextStream
from inflight_client.client import Client
from inflight_client.errors import (
    AccessDenied,
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    ServerFault,
    ServerOverloaded,
    TransportError,
)
from inflight_client.metrics import MetricsSnapshot, Sample
from inflight_client.options import TLS, Timeouts
from inflight_client.prefill.prefill import Prefill
from inflight_client.prompt import Prompt, TextPair
from inflight_client.questions import DrainState, ModelDescription, Tokenization, UnfinishedRequest
from inflight_client.request import AnyPrompt, Message, Queueing, Sampling
from inflight_client.response import (
    Choice,
    Chunk,
    Completion,
    Embedding,
    PerfMetrics,
    PromptTokens,
    Timings,
    Token,
    TokenLogprobs,
    Usage,
)
from inflight_client.retry import RetryPolicy
from inflight_client.server_info import ModelInfo, ServerInfo, TensorInfo
from inflight_client.stream import TextStream

__all__ = [
    "TLS",
    "AccessDenied",
    "AnyPrompt",
    "AsyncClient",
    "AsyncTextStream",
    "Choice",
    "Chunk",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "DrainState",
    "Embedding",
    "InflightError",
    "InvalidRequest",
    "Message",
    "MetricsSnapshot",
    "ModelDescription",
    "ModelInfo",
    "ModelNotReady",
    "PerfMetrics",
    "Prefill",
    "Prompt",
    "PromptTokens",
    "Queueing",
    "RequestCancelled",
    "RetryPolicy",
    "Sample",
    "Sampling",
    "ServerFault",
    "ServerInfo",
    "ServerOverloaded",
    "TensorInfo",
    "TextPair",
    "TextStream",
    "Timeouts",
    "Timings",
    "Token",
    "TokenLogprobs",
    "Tokenization",
    "TransportError",
    "UnfinishedRequest",
    "Usage",
]
