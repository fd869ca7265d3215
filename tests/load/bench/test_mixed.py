"""How `make bench-mixed` analyses a run."""

from dataclasses import replace

import pytest

from load_tests.bench.mixed import FIRST_PROMPT_AT, PROMPTS, STORY, USERS, evenness, requests
from load_tests.records import UNFINISHED, Record
from tests.load.synthetic_runs import run_of

RECORD = run_of(4).records[0]


def story(gaps: list[float], last_token: float) -> Record:
    return replace(RECORD, kind=STORY, first_token=1.0, gaps=tuple(gaps), last_token=last_token, error=UNFINISHED)


def prompt(scheduled: float, first: float, last: float) -> Record:
    return replace(RECORD, kind="prompt", scheduled=scheduled, first_token=first, last_token=last, error=None)


def test_gaps_before_and_after_the_prompts_are_told_from_those_during_them() -> None:
    # Pieces arrive at 1, 2, 9, 11, 12, 14 and 15 s. The prompts are computed from 10 to 13 s.
    long = story([1.0, 7.0, 2.0, 1.0, 2.0, 1.0], 15.0)
    prompts = [prompt(FIRST_PROMPT_AT, 11.5, 12.0), prompt(FIRST_PROMPT_AT + 1, 12.5, 13.0)]
    found = evenness([long, *prompts])
    assert (found.before, found.after) == ([1.0, 7.0], [1.0])
    assert found.alone == [1.0, 7.0, 1.0]
    assert found.alone_p50 == (4.0 + 1.0) / 2
    assert found.during == [1.0]
    assert found.first_tokens == [1.5, 1.5]


def test_a_stream_that_ends_early_and_a_prompt_that_fails_are_errors() -> None:
    with pytest.raises(RuntimeError, match="before the prompts did"):
        evenness([story([1.0], 2.0), prompt(FIRST_PROMPT_AT, 11.5, 12.0)])
    with pytest.raises(RuntimeError, match="Unfinished"):
        evenness([story([1.0], 20.0), replace(prompt(FIRST_PROMPT_AT, 11.5, 12.0), error=UNFINISHED)])


def test_users_come_first_and_prompts_second_by_second() -> None:
    times = [request.at for request in requests()]
    assert times == sorted(times)
    assert times[:USERS] == [0.0] * USERS
    assert times[USERS:] == [FIRST_PROMPT_AT + second for second in range(PROMPTS)]
    assert len({tuple(request.prompt()[:4]) for request in requests()}) == USERS + PROMPTS
