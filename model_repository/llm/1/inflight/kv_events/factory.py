"""Creates the publisher that `kv_events_config` asks for."""

from typing import TYPE_CHECKING

from inflight.config import EngineConfig
from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_events.kv_events_config import KVEventsConfig

if TYPE_CHECKING:
    from inflight.kv_events.publisher import KVEventPublisher


def make_publisher(config: EngineConfig, recorded: BlockEvents) -> "KVEventPublisher":
    """Create a publisher of the recorded events. It does nothing until it is started.

    Raises:
        ValueError: a package that it needs is missing.
    """
    try:
        from inflight.kv_events.publisher import KVEventPublisher
    except ModuleNotFoundError as error:
        raise ValueError(f"kv_events_config is on, which needs the packages pyzmq and msgspec: {error}") from None
    return KVEventPublisher(KVEventsConfig.of(config.kv_events_config), recorded, config.block_size)
