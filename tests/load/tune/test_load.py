"""The requests that a configuration is chosen for."""

from pathlib import Path

import pytest

from load_tests.tune.load import Load
from load_tests.workload import WORKLOADS, read_workload

ROWS = 6000
REPLAY = """
about: A recorded trace.
seed: 1
slo: {ttft: 1.0, itl: 0.1}
streams:
  old: {rate: 2.0, replay: trace.csv}
"""


@pytest.mark.parametrize(("users", "rate"), [(4, None), (None, 2.0)], ids=["closed loop", "open loop"])
def test_another_seed_has_another_part_of_a_trace(tmp_path: Path, users: int | None, rate: float | None) -> None:
    """Otherwise the gain would be predicted for the requests that the settings were chosen for."""
    times = (f"2023-11-16 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}" for second in range(ROWS))
    rows = [f"{time},{number},1" for number, time in enumerate(times, 1)]
    (tmp_path / "trace.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    (tmp_path / "replay.yaml").write_text(REPLAY)
    load = Load(read_workload(tmp_path / "replay.yaml"), users, rate)
    parts = [{request.prompt_tokens for request in load.requests(1200, seed)} for seed in (0, 1, 2)]
    assert [len(part) for part in parts] == [1200] * 3
    assert len(set.union(*parts)) == 3 * 1200


def test_other_workloads_have_the_number_that_is_asked_for() -> None:
    load = Load(read_workload(WORKLOADS / "small.yaml"), users=4)
    first, again, other = (load.requests(1200, seed) for seed in (3, 3, 4))
    assert first == again
    assert len(first) == len(other) == 1200
    assert {request.seed for request in first}.isdisjoint(request.seed for request in other)


def test_an_open_loop_without_a_request_is_refused() -> None:
    load = Load(read_workload(WORKLOADS / "fleet_chats.yaml"), None, 0.5)
    with pytest.raises(ValueError, match=r"no request of fleet_chats arrives in the 2 s for 1 at 0\.5 requests/s"):
        load.requests(1, seed=0)
