"""What `make bench` asks for, how it counts and what it shows; nothing here is timed."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from load_tests.bench import __main__ as bench
from load_tests.bench.report import HEADER, Measurement, Observed, Run, as_json, table
from load_tests.bench.systems import SYSTEMS, Advance, Serve, System
from load_tests.bench.workload import batch_steps, check_length, static_batches, useful_tokens, workload
from load_tests.workload import Task
from scripts.launch.environment import environment


def tasks(*output_tokens: int) -> list[Task]:
    return [Task("a prompt", count) for count in output_tokens]


def test_the_workload_is_the_same_every_time() -> None:
    assert workload(40) == workload(40)
    assert len(set(workload(40))) == 40


def test_the_workload_keeps_to_its_bounds() -> None:
    drawn = workload(500)
    words = {len(task.prompt.split()) for task in drawn}
    lengths = {task.output_tokens for task in drawn}
    assert (min(words), max(words)) == (30, 120)
    assert (min(lengths), max(lengths)) == (16, 96)


def test_warming_up_leaves_no_prompt_in_the_prefix_cache() -> None:
    measured = {tuple(task.prompt.split()[:8]) for task in workload(64)}
    warm_up = {tuple(task.prompt.split()[:8]) for task in workload(32, seed=bench.WARM_UP_SEED)}
    assert measured.isdisjoint(warm_up)


def test_only_tokens_that_were_asked_for_count() -> None:
    batches = static_batches(tasks(16, 96, 20, 30, 40), 2)
    assert [useful_tokens(batch) for batch in batches] == [112, 50, 40]
    assert [batch_steps(batch) for batch in batches] == [96, 30, 40]
    assert useful_tokens(tasks()) == 0


def test_an_answer_of_another_length_is_no_result() -> None:
    check_length(16, 16)
    with pytest.raises(RuntimeError, match="15 tokens instead of 16"):
        check_length(16, 15)


def test_only_one_by_one_is_measured_on_a_part() -> None:
    drawn = workload(64)
    assert [len(system.part(drawn)) for system in SYSTEMS] == [8 if system.at_once == 1 else 64 for system in SYSTEMS]
    assert SYSTEMS[0].part(drawn) == drawn[:8]
    assert len(SYSTEMS[0].part(drawn[:1])) == 1


def test_every_system_is_loaded_and_warmed_up_in_every_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[int] = []

    @contextlib.contextmanager
    def load(folder: Path, at_once: int) -> Iterator[Serve]:
        def serve(asked: Sequence[Task], advance: Advance) -> Observed:
            served.append(len(asked))
            return Observed(steps=at_once)

        yield serve

    monkeypatch.setattr(bench, "SYSTEMS", (System("a", 2, load, share=4), System("b", 3, load)))
    results = bench.bench(tmp_path, workload(8))
    assert served == [2, 2, 3, 8] * 2
    assert [[run.observed.steps for run in result.runs] for result in results] == [[2, 2], [3, 3]]


def results() -> list[Measurement]:
    alone = [Run(100, 10.0, Observed(100, 10.0), 0.0), Run(100, 5.0, Observed(100, 5.0), 0.25)]
    streamed = [
        Run(800, 8.0, Observed(first_token_seconds=(0.1, 0.2)), 0.5),
        Run(800, 16.0, Observed(first_token_seconds=(0.3,)), 1.0),
    ]
    return [Measurement("alone", 1, 4, alone), Measurement("streamed", 32, 16, streamed)]


def test_the_table_is_markdown_with_what_is_known() -> None:
    lines = table(results()).split("\n")
    header, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(header) == HEADER
    assert len(rule) == len(header)
    assert rows == [
        ["alone", "1", "4", "15.0", "10.0, 20.0", "1.0", "75.0", "100%", "-", "0%, 25%"],
        ["streamed", "32", "16", "75.0", "100.0, 50.0", "5.0", "-", "-", "200", "50%, 100%"],
    ]


def test_batch_use_counts_the_places_that_gave_a_useful_token() -> None:
    half = Measurement("half", 8, 16, [Run(400, 1.0, Observed(100, 1.0), 0.0)])
    assert half.batch_use == 0.5


def test_the_file_holds_the_runs_and_the_figures() -> None:
    about = environment("bfloat16", "cpu")
    content = json.loads(json.dumps(as_json(results(), about)))
    assert content["environment"].keys() == about.keys()
    assert [system["tokens_per_second"] for system in content["systems"]] == [15.0, 75.0]
    assert content["systems"][1]["runs"][0]["observed"]["first_token_seconds"] == [0.1, 0.2]
