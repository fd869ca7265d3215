"""What rank 0 sends of a step comes out of the message as it went in."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inflight.lora.adapter import Adapter
from inflight.model.batch_arrays import BatchArrays
from inflight.model.parallel.step_message import Places, StepMessage
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan

BLOCK_SIZE = 4
PAIRS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=4).map(tuple)


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    rows = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5))
    scheduled = []
    for number, (first, count) in enumerate(rows):
        request = Request(str(number), list(range(first + count)), SamplingParams(), max_tokens=1, seed=0)
        request.num_computed = first
        request.adapter = draw(st.sampled_from((None, Adapter("a", 0, ""), Adapter("b", 3, ""))))
        scheduled.append(ScheduledRequest.next_of(request, count))
    tables = np.arange(5 * len(rows), dtype=np.int64).reshape(len(rows), 5)
    return StepPlan(tuple(scheduled), tables, (), draw(PAIRS), draw(PAIRS), draw(PAIRS))


INTS = st.lists(st.integers(-(2**40), 2**40), max_size=9).map(lambda numbers: np.array(numbers, dtype=np.int64))


@given(plans(), st.builds(Places, INTS, INTS, INTS, INTS, INTS))
def test_a_message_is_read_as_it_was_written(plan: StepPlan, places: Places) -> None:
    arrays = BatchArrays.of(plan, BLOCK_SIZE)
    found = StepMessage.decode(StepMessage.of(plan, arrays, places).encode())
    assert (found.swapped_out, found.forked, found.swapped_in) == (
        list(plan.swapped_out),
        list(plan.forked),
        list(plan.swapped_in),
    )
    for mine, other in ((arrays, found.arrays), (places, found.places)):
        for name, array in vars(mine).items():
            np.testing.assert_array_equal(getattr(other, name), array)
            assert getattr(other, name).dtype == np.int64
