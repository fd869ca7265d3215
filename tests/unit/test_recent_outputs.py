"""Drafts from what a tenant's earlier requests said."""

from inflight.speculation.acceptance import Acceptance
from inflight.speculation.follower import Follower
from inflight.speculation.recent_outputs import RecentOutputs


def test_an_output_that_ended_hides_none_that_went_on() -> None:
    outputs = RecentOutputs(2, 16)
    outputs.add([5, 6, 7, 8, 9, 1, 2, 3])
    outputs.add([4, 4, 5, 6, 7, 8, 9])  # The newest one ends where the request is now.
    follower = Follower([50, 51, 5, 6, 7, 8, 9], 2, [], Acceptance(), shortest=2, longest=16)
    assert follower.outlook(outputs) > 0
    assert follower.draft(4) == [1, 2, 3]
