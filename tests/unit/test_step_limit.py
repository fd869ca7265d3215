"""The limit of a step's tokens shrinks when memory is short, and grows again."""

from hypothesis import given
from hypothesis import strategies as st

from inflight.scheduler.step_limit import StepLimit


def run(limit: StepLimit, fits: int, steps: int) -> int:
    """Run steps as large as the limit on a device with room for `fits` tokens. Return how many of them failed."""
    failed = 0
    for _ in range(steps):
        if limit.tokens <= fits:
            limit.step_ran()
        else:
            failed += 1
            limit.shrink(limit.tokens)
    return failed


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_step_soon_fits_and_a_lasting_lack_costs_ever_fewer_failed_steps(most: int, fits: int) -> None:
    limit = StepLimit(most, max_sequences=1)
    halvings = run(limit, fits, most.bit_length())
    assert limit.tokens <= fits
    assert (limit.tokens == most) == (halvings == 0)
    # The waits are 100, 200, 400... steps, and each ends with at most one failed step.
    assert run(limit, fits, 100 * 2**5) <= 6
    assert limit.tokens <= most


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_after_a_passing_lack_the_limit_grows_back(most: int, fits: int) -> None:
    limit = StepLimit(most, max_sequences=1)
    run(limit, fits, most.bit_length())
    assert run(limit, most, 100 * most.bit_length()) == 0
    assert limit.tokens == most


def test_the_limit_grows_after_a_hundred_steps() -> None:
    limit = StepLimit(64, max_sequences=1)
    limit.shrink(64)
    assert limit.tokens == 32
    run(limit, 64, 99)
    assert limit.tokens == 32
    run(limit, 64, 1)
    assert limit.tokens == 64
