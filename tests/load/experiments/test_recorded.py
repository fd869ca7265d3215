"""Parts of recorded traces have the load that is asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.experiments.recorded import FILES, recorded
from load_tests.experiments.stage import Stage, simulator
from load_tests.traffic import Arrival

SERVICE = "azure code"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    rows = [f"2023-11-16 18:{number // 60:02}:{number % 60:02}.1234567,{100 + number},7" for number in range(600)]
    (tmp_path / FILES[SERVICE]).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    return simulator(tmp_path)


def _part(stage: Stage, load: float, seed: int) -> list[Arrival]:
    return recorded(stage, SERVICE, 100, load, seed, num_seqs=8, max_tokens=50)


def test_a_part_has_the_load(stage: Stage) -> None:
    part = _part(stage, 0.5, 1)
    prompt = sum(arrival.prompt_tokens for arrival in part) / 100
    rate = 99 / (part[-1].at - part[0].at)
    assert rate == pytest.approx(0.5 * stage.cost.capacity(prompt, 7, 8))
    assert part[0].at == 0
    assert {(arrival.output_tokens, arrival.max_tokens) for arrival in part} == {(7, 50)}


def test_a_higher_load_is_the_same_part_faster(stage: Stage) -> None:
    slow, fast = _part(stage, 0.4, 1), _part(stage, 0.8, 1)
    assert [arrival.at for arrival in slow] == pytest.approx([2 * arrival.at for arrival in fast])
    assert [replace(arrival, at=0) for arrival in slow] == [replace(arrival, at=0) for arrival in fast]


def test_seeds_have_other_parts(stage: Stage) -> None:
    begins = {_part(stage, 0.4, seed)[0].prompt_tokens for seed in range(1, 6)}
    assert len(begins) == 5


def test_a_trace_that_is_too_short_is_named(stage: Stage) -> None:
    with pytest.raises(ValueError, match=r"_code\.csv has 600 requests; the experiment needs 601"):
        recorded(stage, SERVICE, 601, 0.5, 1, num_seqs=8, max_tokens=50)
