"""The watch over the ranks of a divided model."""

from inflight.errors import EngineDead
from inflight.model.parallel.watch import Watch


def test_a_rank_that_ended_before_anybody_listened_is_reported() -> None:
    watch = Watch([])
    watch.give_up("rank 1 has ended")
    heard: list[EngineDead] = []
    watch.expect_steps(heard.append)
    assert [str(death) for death in heard] == ["rank 1 has ended"]


def test_a_rank_that_ends_while_a_model_is_loaded_is_reported() -> None:
    watch = Watch([])
    heard: list[EngineDead] = []
    watch.expect_loading(heard.append)
    watch.give_up("rank 1 has ended")
    assert [str(death) for death in heard] == ["rank 1 has ended"]


def test_a_rank_that_ends_later_is_reported_once() -> None:
    watch = Watch([])
    heard: list[EngineDead] = []
    watch.expect_steps(heard.append)
    watch.give_up("rank 1 has ended")
    watch.give_up("rank 2 has ended")
    assert [str(death) for death in heard] == ["rank 1 has ended"]
