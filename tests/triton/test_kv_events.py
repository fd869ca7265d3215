"""Routers learn over ZMQ what is in the cache of a server."""

from typing import Any

from scripts.launch.triton_server import TritonServer
from tests.triton.prometheus import scrape_when
from tests.triton.test_contract import generate
from tests.unit.kv_follower import Follower

STORY = "Once upon a time there was a lighthouse keeper who wrote down every ship that passed, and the weather."


def test_blocks_are_told_once_they_are_computed_but_not_those_with_a_salt(
    server: TritonServer, kv_events: dict[str, Any], tokenizer: Any
) -> None:
    token_ids = tokenizer(STORY)["input_ids"]
    whole = len(token_ids) // 16 * 16
    with Follower(kv_events["endpoint"], kv_events["replay_endpoint"], kv_events["topic"]) as router:
        for salt in ({"cache_salt": "secret"}, {"tenant": "a"}, {}):
            generate(server, text_input=STORY, max_tokens=1, **salt)
        router.catch_up()
        stored = [event for event in router.events if event["type"] == "BlockStored"]
        told = [event["token_ids"] for event in stored if event["token_ids"][:16] == token_ids[:16]]
        assert told == [token_ids[:whole]]
        assert stored[-1]["block_size"] == 16
        assert router.hashes.issuperset(stored[-1]["block_hashes"])
    scrape_when(server, lambda found: found.by("kv_event_batches_total", "outcome")["sent"] >= router.next)
