"""Settings of the gateway."""

from collections.abc import Sequence
from dataclasses import dataclass

from inflight_client import Prefill
from inflight_gateway.formats import AUTO
from inflight_gateway.keys import KeyRing


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one gateway. The command line checks their bounds."""

    server: str
    """URL of the Triton server, or of several, in the format of `inflight_client`."""
    balance: str
    """Which of several servers gets a request; see `inflight_client.AsyncClient`."""
    metrics_urls: Sequence[str]
    """The addresses of the servers' metrics."""
    model: str
    """The model's name in Triton."""
    served_model_name: str
    """The model's name for clients."""
    keys: KeyRing | None
    """The accepted API keys. None: no key is needed."""
    max_concurrent_requests: int
    max_concurrent_samples: int
    """A request has as many samples as prompts times `n`."""
    max_body_bytes: int
    max_total_body_bytes: int
    """For the bodies of all requests that run."""
    request_timeout: float
    """Time limit for a whole answer, in seconds."""
    allowed_origins: Sequence[str] = ()
    """The origins of web pages of other servers whose scripts may send requests."""
    prefill: Prefill | None = None
    """Servers that compute long prompts for the others. None: there are none."""
    otlp_traces_endpoint: str | None = None
    """Where the OpenTelemetry spans of requests go. None: there are none."""
    tool_format: str = AUTO
    """The name of the format in which the model writes tool calls, or `auto`."""
    reasoning_format: str = AUTO
    """The name of the format in which the model writes thoughts, or `auto` or `none`."""
