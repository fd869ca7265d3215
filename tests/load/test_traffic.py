"""Arrivals and lengths have the right distributions, and the same seed gives the same values."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from load_tests.arrivals import AllAtOnce, Arrivals, Gamma, OnOff, Staircase
from load_tests.lengths import AZURE_CHAT, AZURE_CODE, Exponential, Lengths, LogNormal, Uniform, fixed
from load_tests.traffic import Arrival, Stream, merge, replay

COUNT = 20_000
PROCESSES = [AllAtOnce(), Gamma(5.0), Gamma(5.0, cv=3.0), OnOff(5.0, 2.0, 3.0), Staircase((1.0, 8.0), 10.0)]


def times(process: Arrivals) -> np.ndarray:
    return process.times(COUNT, np.random.default_rng(1))


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_arrivals_are_in_order(process: Arrivals) -> None:
    found = times(process)
    assert found.shape == (COUNT,)
    assert found[0] >= 0
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_variation_that_were_asked_for(cv: float) -> None:
    gaps = np.diff(times(Gamma(5.0, cv)))
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_nothing_comes_while_it_is_off() -> None:
    found = times(OnOff(5.0, on_seconds=2.0, off_seconds=3.0))
    assert (found % 5.0 <= 2.0 + 1e-6).all()
    assert COUNT / found[-1] == pytest.approx(5.0 * 2 / 5, rel=0.05)


def test_rates_follow_the_staircase_and_the_last_one_stays() -> None:
    found = times(Staircase((10.0, 40.0), seconds=100.0))
    assert (found < 100).sum() == pytest.approx(1000, rel=0.15)
    assert ((found >= 100) & (found < 300)).sum() == pytest.approx(8000, rel=0.05)


@pytest.mark.parametrize(
    "lengths",
    [Uniform(10, 30), fixed(8), Exponential(50.0, 400), LogNormal(100, 0.8, 5, 900), *AZURE_CHAT, *AZURE_CODE],
    ids=repr,
)
def test_lengths_have_the_mean_that_they_say(lengths: Lengths) -> None:
    drawn = lengths.draw(COUNT, np.random.default_rng(2))
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(lengths.mean, rel=0.05)
    assert lengths.scaled(0.5).mean == pytest.approx(lengths.mean / 2, rel=0.1)


def test_the_azure_fits_are_near_the_traces() -> None:
    # Means of the columns in the traces. The distributions are fitted to logarithms, so the cut tail of code prompts
    # counts too much.
    means = [lengths.mean for lengths in (*AZURE_CHAT, *AZURE_CODE)]
    assert means == pytest.approx([1155, 211, 2048, 28], rel=0.2)


def test_a_seed_decides_everything() -> None:
    stream = Stream(Gamma(5.0), *AZURE_CHAT, tenants={"a": 1.0, "b": 3.0}, prefixes=4, prefix_tokens=32)
    assert stream.make(50, 1) == stream.make(50, 1)
    assert stream.make(50, 1) != stream.make(50, 2)


def test_tenants_have_their_shares_and_prefixes_come_on_top() -> None:
    arrivals = Stream(Gamma(5.0), fixed(10), fixed(5), tenants={"a": 1.0, "b": 3.0}, prefix_tokens=32).make(4000, 1)
    assert sum(arrival.tenant == "b" for arrival in arrivals) == pytest.approx(3000, rel=0.05)
    assert {arrival.prompt_tokens for arrival in arrivals} == {42}


def test_outputs_end_at_what_is_asked_for_at_most() -> None:
    arrivals = Stream(AllAtOnce(), fixed(10), Uniform(1, 100), max_tokens=50).make(200, 1)
    assert {arrival.max_tokens for arrival in arrivals} == {50}
    assert max(arrival.output_tokens for arrival in arrivals) == 50


def test_merged_streams_are_in_the_order_of_arrival() -> None:
    first, second = [Arrival(1.0, 1, 1, 1), Arrival(3.0, 1, 1, 1)], [Arrival(2.0, 1, 1, 1)]
    assert [arrival.at for arrival in merge(first, second)] == [1.0, 2.0, 3.0]


def test_a_trace_is_replayed_from_its_first_request_on(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.9799600,3180,8\n2023-11-16 18:17:09.0,1,1\n"
    )
    assert replay(trace, 2, speed=2.0) == [Arrival(0.0, 4808, 10, 10), Arrival(0.5, 3180, 8, 8)]


def test_rows_of_any_order_and_form_of_time_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = ["2024-05-10 00:00:02.5+00:00,30,3", "2024-05-10 00:00:00.0099300,10,1", "2024-05-10 02:00:01+02:00,20,2"]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]), encoding="utf-8-sig")
    assert replay(trace, 3) == [
        Arrival(0.0, 10, 1, 1),
        Arrival(pytest.approx(0.99007), 20, 2, 2),
        Arrival(pytest.approx(2.49007), 30, 3, 3),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("yesterday,10,5", r"trace\.csv, line 2: TIMESTAMP is 'yesterday'; it must be a time such as"),
        ("2024-05-10 00:00:00", r"line 2: ContextTokens is ''; it must be a whole number of at least 1"),
        ("2024-05-10 00:00:00,10,0", r"line 2: GeneratedTokens is '0'; it must be a whole number of at least 1"),
        ("2024-05-10 00:00:00,99999999,1", r"line 2: ContextTokens is '99999999'; .* and at most 10000000"),
        (f"{'x' * 200_000},1,1", r"trace\.csv, line 2: field larger than field limit"),
    ],
    ids=range(5),
)
def test_a_row_that_is_no_request_is_named(tmp_path: Path, row: str, message: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n")
    with pytest.raises(ValueError, match=message):
        replay(trace, 2)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="TIMESTAMP"):
        replay(other, 2)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(gzip.compress(b"TIMESTAMP,ContextTokens,GeneratedTokens"))
    with pytest.raises(ValueError, match=r"trace\.csv is no text in UTF-8: "):
        replay(trace, 2)


def test_of_a_long_trace_only_the_requests_asked_for_are_kept(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = (f"2024-05-10 00:{60 * i // 20_000:02}:00.{i:06},300,300" for i in reversed(range(20_000)))
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    tracemalloc.start()
    try:
        assert len(replay(trace, 10)) == 10
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 500_000  # All of them take 5 MB.
