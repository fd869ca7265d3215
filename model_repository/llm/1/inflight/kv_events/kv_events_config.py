"""The setting `kv_events_config`, with vLLM's names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.json_setting import read_json_setting

NULL = "null"
ZMQ = "zmq"
PUBLISHERS = (ZMQ, NULL)

_MAX_BATCHES = 10_000_000
_SCHEMES = ("tcp://", "ipc://")


@dataclass(frozen=True, kw_only=True)
class KVEventsConfig:
    """How the content of the prefix cache is published.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    enable_kv_cache_events: bool = False
    """Publish which blocks enter and leave the prefix cache."""

    publisher: str = ZMQ
    """`zmq`, or `null` to publish nothing."""

    endpoint: str = "tcp://127.0.0.1:5557"
    """Address to listen on: `tcp://ADDRESS:PORT`, where `*` stands for all addresses of the host, or `ipc://PATH`.
    vLLM listens only if the address is `*`, and otherwise connects to it."""

    replay_endpoint: str | None = None
    """Address to listen on for those who ask for batches again. Default: nobody can ask."""

    buffer_steps: int = 10_000
    """How many of the newest batches can be asked for again."""

    hwm: int = 100_000
    """Maximum number of batches that wait for one slow follower. It misses those that come then."""

    max_queue_size: int = 100_000
    """Maximum number of batches that wait to be sent. When one more comes, the oldest is not sent."""

    topic: str = ""
    """First frame of each message, by which followers can subscribe."""

    def __post_init__(self) -> None:
        if not isinstance(self.enable_kv_cache_events, bool):
            raise ValueError(
                f"kv_events_config: enable_kv_cache_events is {self.enable_kv_cache_events!r}; it must be true or false"
            )
        if self.publisher not in PUBLISHERS:
            raise ValueError(
                f"kv_events_config: publisher is {self.publisher!r}; it must be one of {', '.join(PUBLISHERS)}"
            )
        self._check_endpoint("endpoint", self.endpoint)
        if self.replay_endpoint is not None:
            self._check_endpoint("replay_endpoint", self.replay_endpoint)
            if self.replay_endpoint == self.endpoint:
                raise ValueError(f"kv_events_config: endpoint and replay_endpoint are both {self.endpoint!r}")
        if not isinstance(self.topic, str):
            raise ValueError(f"kv_events_config: topic is {self.topic!r}; it must be a text")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_BATCHES:
                raise ValueError(
                    f"kv_events_config: {name} is {value!r}; it must be a whole number from 1 to {_MAX_BATCHES}"
                )

    def _check_endpoint(self, name: str, value: object) -> None:
        if not isinstance(value, str) or not value.startswith(_SCHEMES):
            raise ValueError(f"kv_events_config: {name} is {value!r}; it must begin with {' or '.join(_SCHEMES)}")

    @property
    def is_on(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher != NULL

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "KVEventsConfig":
        """Return the config with these values.

        Raises:
            ValueError: as above, or a name is unknown.
        """
        return read_json_setting(cls, "kv_events_config", values)
