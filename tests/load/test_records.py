"""The measures of a run, on numbers that can be checked on paper, and the file of records."""

from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.records import UNFINISHED, Record, Run, read_records, write_records
from load_tests.slo import Slo

WHOLE = Record(
    index=0,
    kind="chat",
    tenant="ann",
    priority=1,
    prompt_tokens=5,
    max_tokens=5,
    target_ttft=None,
    scheduled=1.0,
    sent=1.1,
    first_token=1.5,
    last_token=3.5,
    output_tokens=5,
    gaps=(0.5, 1.5),
    error=None,
)
ONE_TOKEN = replace(WHOLE, index=1, scheduled=2.0, sent=2.0, first_token=4.0, last_token=4.0, output_tokens=1, gaps=())
CUT = replace(WHOLE, index=2, scheduled=3.0, sent=3.5, last_token=9.0, error=UNFINISHED)
REFUSED = replace(
    WHOLE,
    index=3,
    scheduled=4.0,
    sent=4.0,
    first_token=None,
    last_token=None,
    output_tokens=0,
    gaps=(),
    error="Refused",
)
RUN = Run([WHOLE, ONE_TOKEN, CUT, REFUSED], generator_busy=0.5)


def test_times_count_from_the_plan_and_are_those_of_whole_answers() -> None:
    assert RUN.ttft.tolist() == [0.5, 2.0]
    assert RUN.e2e.tolist() == [2.5, 2.0]
    assert RUN.gaps.tolist() == [0.5, 1.5]
    assert [record.mean_gap for record in RUN.done] == [0.5, 0.0]
    assert RUN.lateness.tolist() == pytest.approx([0.1, 0.0, 0.5, 0.0])


def test_throughput_is_that_of_whole_answers() -> None:
    # From the first scheduled time, 1, to the last token of all, 9.
    assert RUN.duration == 8.0
    assert RUN.throughput == 6 / 8


@pytest.mark.parametrize(
    ("slo", "good"), [(Slo(2.0, 0.5), 2), (Slo(1.0, 0.5), 1), (Slo(2.0, 0.4), 1), (Slo(0.1, 1), 0)]
)
def test_a_request_is_good_if_both_of_its_times_are(slo: Slo, good: int) -> None:
    assert RUN.attainment(slo) == good / 4
    assert RUN.goodput(slo) == good / 8


def test_a_target_counts_from_the_plan() -> None:
    # 0.5 s after it was due, and 0.4 s after it was sent.
    assert (WHOLE.meets(Slo(0.5, 0.5)), WHOLE.meets(Slo(0.45, 0.5))) == (True, False)


def test_a_request_has_a_target_of_its_own() -> None:
    assert not WHOLE.meets(Slo(0.1, 1.0))
    assert replace(WHOLE, target_ttft=0.5).meets(Slo(0.1, 1.0))


def test_errors_are_counted_by_name() -> None:
    assert RUN.errors() == {"Refused": 1, UNFINISHED: 1}


def test_a_part_has_the_requests_that_were_scheduled_in_it() -> None:
    assert [record.index for record in RUN.between(2.0, 4.0).records] == [1, 2]
    # It was sent later than planned.
    assert [record.index for record in RUN.between(3.0, 3.4).records] == [2]


def test_the_first_requests_can_be_left_out() -> None:
    assert [record.index for record in RUN.without_first(1).records] == [1, 2, 3]


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "records.jsonl"
    write_records(RUN.records, path)
    assert read_records(path) == list(RUN.records)
