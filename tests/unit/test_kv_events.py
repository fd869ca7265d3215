"""KV events on real sockets: the form of the messages, gaps, what can be asked for again, and the setting."""

import itertools
import random
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from inflight import EngineConfig, RequestOptions
from inflight.kv_cache.block_events import BlockEvents, BlocksStored
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_events.factory import make_publisher
from inflight.kv_events.kv_events_config import KVEventsConfig
from inflight.kv_events.publisher import KVEventPublisher
from inflight.kv_events.wire import wire_hash
from inflight.prompt_images import PromptImages
from serving.settings import read_settings
from tests.unit.builders import admit, make_request, make_tables
from tests.unit.kv_follower import Follower

ON = {"enable_kv_cache_events": True}


class Cache:
    """Tables of two-token blocks whose events are published, by default over sockets in a folder."""

    def __init__(
        self,
        folder: Path,
        num_blocks: int = 8,
        per_tenant: bool = False,
        live: str | None = None,
        replay: str | None = None,
        **settings: Any,
    ) -> None:
        self.live, self.replay = live or f"ipc://{folder}/live", replay or f"ipc://{folder}/replay"
        self.config = KVEventsConfig(**ON, endpoint=self.live, replay_endpoint=self.replay, **settings)
        self.recorded = BlockEvents()
        self.tables: BlockTables = make_tables(num_blocks, 2, per_tenant=per_tenant, events=self.recorded)
        self.publisher = KVEventPublisher(self.config, self.recorded, 2)

    def serve(self, prompt: list[int], **others: Any) -> list[int]:
        """Compute a prompt in one step, and return the hashes of its blocks as they are sent."""
        request = make_request(f"r{prompt}", prompt, **others)
        assert admit(self.tables, request)
        self.tables.commit(request, request.num_uncomputed)
        self.tables.release(request)
        self.publisher.publish()
        return [wire_hash(name) for name in request.block_hashes]

    def known(self) -> set[int]:
        """Hashes of the blocks in the cache, as they are sent."""
        return set(map(wire_hash, self.tables.pool._block_of))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path)
    made.publisher.start()
    yield made
    made.publisher.close()


@pytest.fixture
def follower(cache: Cache) -> Iterator[Follower]:
    """Somebody who gets every batch from now on."""
    with Follower(cache.live, cache.replay) as made:
        subscribe(made, cache)
        yield made


def subscribe(follower: Follower, cache: Cache) -> None:
    """Wait until the follower gets what is published."""
    for token in itertools.count(1000):
        cache.serve([token, token])
        if follower.hears(milliseconds=20):
            follower.follow_until(cache.known())
            return


def test_a_batch_has_the_form_of_vllm(tmp_path: Path) -> None:
    cache = Cache(tmp_path, num_blocks=3, topic="kv@pod")
    first = cache.serve([1, 2, 3, 4, 5])
    second = cache.serve([1, 2, 9, 9, 8, 8])
    payloads = [msgspec.msgpack.decode(payload) for _, payload in cache.publisher._unsent]
    cache.publisher.close()
    whole = {"block_size": 2, "lora_id": None, "lora_name": None, "medium": "GPU", "type": "BlockStored"}
    assert [events for _, events, _ in payloads] == [
        [{**whole, "block_hashes": first, "parent_block_hash": None, "token_ids": [1, 2, 3, 4]}],
        [
            {"type": "BlockRemoved", "block_hashes": first[1:], "medium": "GPU"},
            {**whole, "block_hashes": second[1:], "parent_block_hash": first[0], "token_ids": [9, 9, 8, 8]},
        ],
    ]
    assert all(0 <= name < 2**64 for name in first + second)
    assert wire_hash(b"\1" * 8 + b"\0" * 6 + b"\1\2") == 258


def test_who_follows_knows_the_cache(cache: Cache, follower: Follower) -> None:
    rng = random.Random(5)
    for _ in range(60):
        cache.serve(rng.choices([0, 1], k=rng.randint(2, 10)))
        follower.follow_until(cache.known())
    assert "BlockRemoved" in {event["type"] for event in follower.events}


def test_after_a_gap_a_follower_asks_for_what_it_missed(cache: Cache) -> None:
    cache.serve([1, 2, 3, 4])
    with Follower(cache.live, cache.replay) as late:
        subscribe(late, cache)  # The first message that it gets is not the first one.
        assert late.events[1]["token_ids"] == [1, 2, 3, 4]
        assert late.hashes == cache.known()


def test_late_followers_begin_with_an_empty_cache(cache: Cache) -> None:
    cache.serve([1, 2, 3, 4])
    cache.serve([5, 6])
    with Follower(cache.live, cache.replay) as late:
        assert late.catch_up() == [0, 1, 2]
        assert late.events[0] == {"type": "AllBlocksCleared"}
        assert late.hashes == cache.known()
        assert late.catch_up() == []


def test_only_the_newest_batches_can_be_asked_for(tmp_path: Path) -> None:
    cache = Cache(tmp_path, buffer_steps=3)
    cache.publisher.start()
    for token in range(10):
        cache.serve([token, token])
    with Follower(cache.live, cache.replay) as late:
        assert late.catch_up() == [8, 9, 10]
    cache.publisher.close()


def test_when_too_many_batches_wait_the_oldest_are_not_sent_but_can_be_asked_for(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_queue_size=4)
    for token in range(8):  # Nothing is sent yet.
        cache.serve([token, token])
    assert cache.publisher.counts() == {"sent": 0, "dropped": 4}
    cache.publisher.start()
    with Follower(cache.live, cache.replay) as follower:
        assert follower.catch_up() == list(range(9))
    cache.publisher.close()
    assert cache.publisher.counts() == {"sent": 5, "dropped": 5}


def test_a_malformed_question_is_ignored(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.serve([1, 2])
    with Follower(cache.live, cache.replay) as follower:
        for frames in ((), (b"",), (b"\0" * 7,), (b"\0" * 8, b""), (b"-1",)):
            follower.ask(*frames)
        assert follower.catch_up() == [0, 1]
    assert caplog.text.count("is ignored") == 1  # However many there are, they do not fill the log.


@pytest.mark.parametrize(
    ("options", "per_tenant", "is_told"),
    [
        (RequestOptions(), True, True),
        (RequestOptions(tenant="a"), True, False),
        (RequestOptions(tenant="a"), False, True),
        (RequestOptions(cache_salt="s"), False, False),
    ],
)
def test_blocks_with_a_salt_are_not_told(
    options: RequestOptions, per_tenant: bool, is_told: bool, tmp_path: Path
) -> None:
    cache = Cache(tmp_path, num_blocks=2, per_tenant=per_tenant)
    cache.serve([1, 2, 3, 4], options=options)
    cache.serve([5, 6, 7, 8])  # It evicts the others.
    events = [event for _, payload in cache.publisher._unsent for event in msgspec.msgpack.decode(payload)[1]]
    cache.publisher.close()
    stored = [event["token_ids"] for event in events if event["type"] == "BlockStored"]
    assert stored == ([[1, 2, 3, 4]] if is_told else []) + [[5, 6, 7, 8]]
    assert ("BlockRemoved" in {event["type"] for event in events}) == is_told


def test_at_the_end_nothing_is_in_the_cache(cache: Cache, follower: Follower) -> None:
    assert follower.hashes
    cache.publisher.close()
    follower.follow_until(set())
    assert follower.events[-1] == {"type": "AllBlocksCleared"}


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_publisher_takes_over_the_addresses_of_the_one_before(
    scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when Triton loads a model again."""
    cache = Cache(tmp_path, **(tcp_endpoints() if scheme == "tcp" else {}))
    cache.publisher.start()
    assert not caplog.text
    after = KVEventPublisher(cache.config, cache.recorded, 2)
    after.start()
    assert caplog.text.count("is in use") == 2
    cache.publisher.close()
    cache.publisher = after
    with Follower(cache.live, cache.replay) as follower:
        subscribe(follower, cache)
    after.close()


def tcp_endpoints() -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [taken.getsockname()[1] for taken in (one, other)]
    return dict(zip(("live", "replay"), (f"tcp://127.0.0.1:{port}" for port in ports), strict=True))


def test_an_address_that_cannot_be_used_is_refused(cache: Cache) -> None:
    publisher = KVEventPublisher(KVEventsConfig(**ON, endpoint="tcp://192.0.2.1:5557"), cache.recorded, 2)
    with pytest.raises(ValueError, match=r"cannot listen on 'tcp://192.0.2.1:5557': Cannot assign"):
        publisher.start()
    assert (publisher._woken.fileno(), publisher._waker.fileno()) == (-1, -1), "sockets are left open"


# -- the setting -----------------------------------------------------------------------------------------------------


def test_by_default_nothing_is_published_and_only_this_host_could_connect() -> None:
    assert not KVEventsConfig().is_on
    assert not KVEventsConfig.of(EngineConfig(model="m").kv_events_config).is_on
    assert not KVEventsConfig(**ON, publisher="null").is_on
    assert KVEventsConfig().endpoint == "tcp://127.0.0.1:5557"


def test_the_setting_is_json_with_the_names_of_vllm() -> None:
    given = (
        '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": null, '
        '"buffer_steps": 10, "hwm": 20, "max_queue_size": 30, "topic": "kv"}'
    )
    engine, _ = read_settings({"model": "m", "kv_events_config": given})
    config = KVEventsConfig.of(engine.kv_events_config)
    assert config.is_on
    assert (config.endpoint, config.buffer_steps, config.topic) == ("tcp://*:1", 10, "kv")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"endpoints": ""},
            "kv_events_config has 'endpoints'; it may have enable_kv_cache_events, publisher, ",
        ),
        ({"enable_kv_cache_events": 1}, "enable_kv_cache_events is 1; it must be true or false"),
        ({"publisher": "nats"}, "publisher is 'nats'; it must be one of zmq, null"),
        ({"endpoint": "5557"}, "endpoint is '5557'; it must begin with tcp:// or ipc://"),
        ({"replay_endpoint": ""}, "replay_endpoint is ''; it must begin with tcp:// or ipc://"),
        ({"replay_endpoint": "tcp://127.0.0.1:5557"}, "endpoint and replay_endpoint are both 'tcp://127.0.0.1:5557'"),
        ({"topic": None}, "topic is None; it must be a text"),
        ({"buffer_steps": 0}, "buffer_steps is 0; it must be a whole number from 1 to 10000000"),
        ({"hwm": True}, "hwm is True; it must be a whole number from 1 to 10000000"),
    ],
)
def test_values_out_of_bounds_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EngineConfig(model="m", kv_events_config=values)


def test_without_a_prefix_cache_there_is_nothing_to_publish() -> None:
    with pytest.raises(ValueError, match="kv_events_config is on, but enable_prefix_caching is false"):
        EngineConfig(model="m", kv_events_config=ON, enable_prefix_caching=False)


@pytest.mark.parametrize("package", ["zmq", "msgspec"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("publisher", "wire"):
        monkeypatch.delitem(sys.modules, f"inflight.kv_events.{name}")
    with pytest.raises(ValueError, match=f"needs the packages pyzmq and msgspec: .*{package}"):
        make_publisher(EngineConfig(model="m", kv_events_config=ON), BlockEvents())


def test_the_blocks_before_an_image_are_announced() -> None:
    """Requests without the image share them, and their own blocks name them as parents."""
    events = BlockEvents()
    tables = make_tables(32, 4, events=events)
    beginning = list(range(10, 18))

    def stored(name: str, prompt_ids: list[int], images: PromptImages | None = None) -> list[BlocksStored]:
        request = make_request(name, prompt_ids)
        request.images = images
        assert admit(tables, request)
        tables.commit(request, request.num_uncomputed)
        tables.release(request)
        return [event for event in events.take() if isinstance(event, BlocksStored)]

    image = PromptImages(((8, 12, b"an image"),), np.arange(8, 12), None)
    (before,) = stored("image", [*beginning, *[99] * 4, 1, 2, 3], image)
    assert before.token_ids == beginning
    (after,) = stored("text", [*beginning, 30, 31, 32, 33, 34])
    assert after.parent == before.hashes[-1]
