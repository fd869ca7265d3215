"""Settings of the Triton side, one frozen dataclass."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerConfig:
    """Settings of one model instance's server.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    max_inflight_requests: int | None = None
    """Maximum number of requests in the engine. While it is reached, `execute()` blocks, and further requests wait
    in Triton's queue under the policies of `dynamic_batching`. Default: `execute()` never blocks."""

    stream_interval: int = 1
    """Number of tokens that a stream sends in one response, as in vLLM. The first and the last token are never held
    back. Fewer responses leave more CPU time to a model that runs on the same cores."""

    def __post_init__(self) -> None:
        if self.max_inflight_requests is not None and self.max_inflight_requests < 1:
            raise ValueError(f"max_inflight_requests is {self.max_inflight_requests}; it must be at least 1")
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval is {self.stream_interval}; it must be at least 1")
