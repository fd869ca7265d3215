"""Settings of the Triton side, one frozen dataclass."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerConfig:
    """Settings of one model instance's server.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    max_inflight_requests: int | None = None
    """Where given, `execute()` returns only when fewer requests than this are in the engine, so that those that come
    meanwhile wait in Triton's own queue, under the policies of `dynamic_batching`. Not given: it never waits."""

    stream_interval: int = 1
    """Tokens of a stream that go out as one response, as in vLLM; its first and its last token never wait. A response
    costs some hundred microseconds, of the model's own cores where that is on the CPU."""

    def __post_init__(self) -> None:
        if self.max_inflight_requests is not None and self.max_inflight_requests < 1:
            raise ValueError(f"max_inflight_requests is {self.max_inflight_requests}; it must be at least 1")
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval is {self.stream_interval}; it must be at least 1")
