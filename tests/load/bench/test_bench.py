"""The requests, counts and tables of `make bench`. Nothing here is timed."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from load_tests.bench import __main__ as bench
from load_tests.bench.ratios import ENGINE, SERVER
from load_tests.bench.report import HEADER, ONE_BY_ONE, Measurement, Observed, Round, as_json, table
from load_tests.bench.requests import (
    Incomplete,
    batch_steps,
    bench_requests,
    check_complete,
    check_length,
    static_batches,
    turns,
    useful_tokens,
    warm_up_requests,
)
from load_tests.bench.systems import SYSTEMS, Advance, Serve, System
from load_tests.loads import GREEDY, LOADS, read_loads
from load_tests.prompts import PlannedRequest
from scripts.launch.environment import environment
from tests.load.synthetic_runs import run_of


def asking_for(*output_tokens: int) -> list[PlannedRequest]:
    return [PlannedRequest(0.0, 8, count, count) for count in output_tokens]


def test_the_requests_are_the_same_every_time() -> None:
    assert bench_requests(40) == bench_requests(40)
    assert len(set(bench_requests(40))) == 40


def test_the_requests_keep_to_their_bounds() -> None:
    drawn = bench_requests(1500)
    prompts = {len(request.prompt()) for request in drawn}
    lengths = {request.output_tokens for request in drawn}
    assert (min(prompts), max(prompts)) == (30, 120)
    assert (min(lengths), max(lengths)) == (16, 96)


def test_warming_up_leaves_no_prompt_in_the_prefix_cache() -> None:
    measured = {tuple(request.prompt()[:8]) for request in bench_requests(64)}
    assert measured.isdisjoint(tuple(request.prompt()[:8]) for request in warm_up_requests(32))


def test_only_tokens_that_were_asked_for_count() -> None:
    batches = static_batches(asking_for(16, 96, 20, 30, 40), 2)
    assert [useful_tokens(batch) for batch in batches] == [112, 50, 40]
    assert [batch_steps(batch) for batch in batches] == [96, 30, 40]
    assert useful_tokens(asking_for()) == 0


def test_an_answer_of_another_length_is_no_result() -> None:
    check_length(16, 16)
    with pytest.raises(Incomplete, match="15 tokens instead of 16"):
        check_length(16, 15)


def test_a_run_with_a_failure_is_no_result() -> None:
    assert check_complete(run_of(100)).throughput == 100
    with pytest.raises(Incomplete, match="ServerOverloaded: 1"):
        check_complete(run_of(100, "ServerOverloaded"))


def test_only_one_by_one_is_measured_on_a_part() -> None:
    drawn = bench_requests(64)
    assert [len(system.part(drawn)) for system in SYSTEMS] == [8 if system.at_once == 1 else 64 for system in SYSTEMS]
    assert SYSTEMS[0].part(drawn) == drawn[:8]
    assert len(SYSTEMS[0].part(drawn[:1])) == 1


def test_every_system_is_loaded_and_warmed_up_in_every_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[int] = []

    @contextlib.contextmanager
    def load(folder: Path, at_once: int) -> Iterator[Serve]:
        def serve(asked: Sequence[PlannedRequest], advance: Advance) -> Observed:
            served.append(len(asked))
            return Observed(steps=at_once)

        yield serve

    monkeypatch.setattr(bench, "SYSTEMS", (System("a", 2, load, share=4), System("b", 3, load)))
    results, failures = bench.bench(tmp_path, bench.cases(read_loads("greedy"), 8))
    assert served == [2, 2, 3, 8] * 2
    assert failures == []
    assert [[each.observed.steps for each in result.rounds] for result in results] == [[2, 2], [3, 3]]


def test_a_request_that_fails_costs_its_own_round_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rounds = iter([False, True, True, False, False, True])

    @contextlib.contextmanager
    def load(folder: Path, at_once: int) -> Iterator[Serve]:
        answered = next(rounds)

        def serve(asked: Sequence[PlannedRequest], advance: Advance) -> Observed:
            check_length(asked[0].output_tokens, asked[0].output_tokens - (not answered))
            return Observed()

        yield serve

    monkeypatch.setattr(bench, "SYSTEMS", tuple(System(name, 2, load) for name in "abc"))
    results, failures = bench.bench(tmp_path, bench.cases(read_loads("greedy"), 8))
    assert [(result.system, len(result.rounds)) for result in results] == [("b", 1), ("c", 2)]
    assert [failure.partition(" at once: ")[0] for failure in failures] == [
        "greedy, a, 2",
        "greedy, a, 2",
        "greedy, b, 2",
    ]


def test_other_loads_than_the_greedy_one_are_for_the_engine_and_the_server() -> None:
    found = [(case.workload.name, case.system.name, len(case.requests)) for case in bench.cases(read_loads("all"), 64)]
    assert [case[1] for case in found if case[0] == GREEDY] == [system.name for system in SYSTEMS]
    for load in LOADS[1:]:
        count = 16 if load == "long" else 64
        assert [case[1:] for case in found if case[0] == load] == [(ENGINE, count), (SERVER, count)]


def test_turns_of_a_chat_are_sent_one_after_the_other() -> None:
    def turn(chat: int, tokens: int) -> PlannedRequest:
        return PlannedRequest(0.0, tokens, 1, 1, prefix=chat, prefix_tokens=tokens, kind="chat")

    alone = asking_for(3)[0]
    requests = [turn(1, 5), turn(2, 5), turn(1, 9), alone, turn(1, 13), turn(2, 9)]
    assert turns(requests) == [[turn(1, 5), turn(2, 5), alone], [turn(1, 9), turn(2, 9)], [turn(1, 13)]]
    assert turns(asking_for(1, 2, 3)) == [asking_for(1, 2, 3)]


def results() -> list[Measurement]:
    alone = [Round(100, 10.0, Observed(100, 10.0), 0.0), Round(100, 5.0, Observed(100, 5.0), 0.25)]
    streamed = [
        Round(800, 8.0, Observed(first_token_seconds=(0.1, 0.2)), 0.5),
        Round(800, 16.0, Observed(first_token_seconds=(0.3,)), 1.0),
    ]
    return [
        Measurement(GREEDY, *ONE_BY_ONE, 4, alone),
        Measurement(GREEDY, "streamed", 32, 16, streamed),
        Measurement("top_p", "streamed", 32, 16, streamed[:1]),
    ]


def test_the_table_is_markdown_with_what_is_known() -> None:
    lines = table(results()).split("\n")
    header, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(header) == HEADER
    assert len(rule) == len(header)
    assert rows == [
        [GREEDY, ONE_BY_ONE[0], "1", "4", "15.0", "10.0, 20.0", "1.0", "75.0", "100%", "-", "0%, 25%"],
        [GREEDY, "streamed", "32", "16", "75.0", "100.0, 50.0", "5.0", "-", "-", "200", "50%, 100%"],
        ["top_p", "streamed", "32", "16", "100.0", "100.0", "-", "-", "-", "150", "50%"],
    ]


def test_batch_use_counts_the_slots_that_gave_a_useful_token() -> None:
    half = Measurement(GREEDY, "half", 8, 16, [Round(400, 1.0, Observed(100, 1.0), 0.0)])
    assert half.batch_use == 0.5


def test_the_file_holds_the_rounds_and_the_figures() -> None:
    about = environment("bfloat16", "cpu")
    content = json.loads(json.dumps(as_json(results(), about)))
    assert content["environment"].keys() == about.keys()
    assert [system["tokens_per_second"] for system in content["systems"]] == [15.0, 75.0, 100.0]
    assert content["systems"][1]["rounds"][0]["observed"]["first_token_seconds"] == [0.1, 0.2]
