"""What the gateway is told when it starts."""

from dataclasses import dataclass

from inflight_gateway.keys import KeyRing


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one gateway; the command line checks their bounds."""

    server: str
    """URL of the Triton server, as `inflight_client` takes it."""
    model: str
    """The model's name in Triton."""
    served_model_name: str
    """The model's name for clients."""
    keys: KeyRing | None
    """None: everybody may ask."""
    max_concurrent_requests: int
    max_body_bytes: int
    request_timeout: float
    """Seconds for a whole answer."""
