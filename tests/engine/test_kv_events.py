"""Who follows the events of an engine knows what is in its prefix cache."""

from pathlib import Path

import numpy as np

from inflight import EmbedsPrompt, RequestOptions, SamplingParams
from inflight.kv_events.wire import wire_hash
from tests.engine.models import Tiny, greedy, make_engine, make_prompt
from tests.unit.kv_follower import Follower

ROW = np.zeros((1, 64), dtype=np.float32)


def test_a_follower_knows_the_cache_of_an_engine_until_it_is_closed(tiny: Tiny, tmp_path: Path) -> None:
    live, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    setting = {"enable_kv_cache_events": True, "endpoint": live, "replay_endpoint": replay}
    engine = make_engine(
        tiny.folder, kv_cache_tokens=128, block_size=4, kv_events_config=setting, enable_prompt_embeds=True
    )
    cache = engine.core._scheduler.tables.pool
    with Follower(live, replay) as follower:
        for seed in range(8):
            # Nothing stands for the row, so the blocks are those of tokens.
            without_row = EmbedsPrompt(ROW, make_prompt(15, seed))
            engine.generate([make_prompt(20, seed), without_row, make_prompt(9, seed)], greedy(12))
            follower.catch_up()
            assert follower.hashes == set(map(wire_hash, cache._block_of))
        assert {"BlockStored", "BlockRemoved"} <= {event["type"] for event in follower.events}
        engine.submit(make_prompt(20, 99), SamplingParams(max_tokens=1), RequestOptions(tenant="a"))
        while engine.has_work:
            engine.step()
        follower.catch_up()
        assert len(follower.hashes) == len(cache._block_of) - 5
        assert engine.stats().kv_event_batches == {"sent": follower.next, "dropped": 0}
        engine.close()
        follower.follow_until(set())
