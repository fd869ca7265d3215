"""Workload files specify requests exactly, and errors in them are reported."""

import argparse
import itertools
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from load_tests.loads import LOADS, read_loads
from load_tests.prompts import PlannedRequest
from load_tests.slo import Slo
from load_tests.workload import WORKLOADS, Workload, WorkloadError, read_workload
from scripts.peers.peer import CONTEXT

SHIPPED = sorted(WORKLOADS.glob("*.yaml"))
FIXED = {"distribution": "fixed", "tokens": 8}
STREAM = {"rate": 2.0, "prompts": FIXED, "outputs": FIXED}


def document(**fields: object) -> dict[str, object]:
    """A file with one stream that has these fields."""
    slo = {"ttft": 1.0, "itl": 0.1}
    return {"about": "A test.", "seed": 1, "slo": slo, "streams": {"only": {**STREAM, **fields}}}


def workload(folder: Path, written: object) -> Workload:
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(written))
    return read_workload(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_ones_say_what_they_are_and_have_their_rate(path: Path) -> None:
    shipped = read_workload(path)
    assert shipped.name == path.stem
    assert len(shipped.about) > 100
    arrivals = shipped.arrivals(rate=20.0, seconds=1200.0)
    assert len(arrivals) == pytest.approx(20 * 1200, rel=0.2)
    assert [request.at for request in arrivals] == sorted(request.at for request in arrivals)
    context = 8192 if path.stem in ("chat", "code_completion") else 2048
    assert max(request.prompt_tokens + request.output_tokens for request in arrivals) <= context


def test_what_was_asked_for_is_shipped() -> None:
    names = ["batch_summarising", "chat", "code_completion", "copying", "fleet_chats", "mixed_slo", "noisy_neighbour"]
    assert [path.stem for path in SHIPPED] == sorted([*names, "small", *LOADS])


def test_prompts_repeat_their_passage_and_break_off_inside_it() -> None:
    for request in itertools.islice(read_workload(WORKLOADS / "copying.yaml").requests(), 20):
        prompt = request.prompt()
        assert len(prompt) == request.prompt_tokens
        assert prompt[64:] == prompt[:-64]
        assert len(set(prompt)) > 32


@pytest.mark.parametrize("load", [*LOADS, "copying"])
def test_the_servers_that_are_compared_have_room_for_the_loads_of_the_benchmarks(load: str) -> None:
    (workload,) = read_loads(load)
    assert max(r.prompt_tokens + r.output_tokens for r in itertools.islice(workload.requests(), 3000)) <= CONTEXT


def test_sampled_loads_differ_from_the_greedy_one_in_nothing_else() -> None:
    greedy, hot, nucleus = (
        list(itertools.islice(load.requests(), 100)) for load in read_loads("greedy,temperature,top_p")
    )
    assert {(request.temperature, request.top_p) for request in greedy} == {(0.0, 1.0)}
    assert [replace(request, temperature=0.0) for request in hot] == greedy
    assert [replace(request, temperature=0.0, top_p=1.0) for request in nucleus] == greedy
    assert {(request.temperature, request.top_p) for request in nucleus} == {(1.0, 0.95)}


def test_loads_are_names_or_paths(tmp_path: Path) -> None:
    assert tuple(load.name for load in read_loads("all")) == LOADS
    workload(tmp_path, document())
    assert [load.name for load in read_loads(f"short,{tmp_path / 'test.yaml'}")] == ["short", "test"]
    for wrong, message in {
        "sohrt": "neither all nor one of",
        f"{tmp_path / 'no.yaml'}": "No such file",
        "short,long,short": "2 loads",
    }.items():
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            read_loads(wrong)


def test_prompts_of_a_workload_are_cut_from_its_text(tmp_path: Path) -> None:
    written = workload(tmp_path, document())
    written.text = range(7, 50)
    assert {token for request in written.arrivals(5.0, 20.0) for token in request.prompt()} <= set(range(7, 50))


def test_a_seed_decides_everything_and_another_brings_other_prompts() -> None:
    first, again, other = (read_workload(WORKLOADS / "chat.yaml").arrivals(5.0, 60.0, seed) for seed in (3, 3, 4))
    assert first == again
    assert {request.seed for request in first}.isdisjoint(request.seed for request in other)


def test_streams_keep_their_shares_at_any_rate() -> None:
    noisy = read_workload(WORKLOADS / "noisy_neighbour.yaml")
    arrivals = noisy.arrivals(rate=2 * noisy.rate, seconds=2000.0)
    assert len(arrivals) / 2000 == pytest.approx(2 * noisy.rate, rel=0.1)
    assert sum(request.kind == "flood" for request in arrivals) / len(arrivals) == pytest.approx(0.8, rel=0.1)
    assert {request.tenant for request in arrivals if request.kind == "quiet"} == {"ann", "bob", "cleo"}


def test_priorities_and_targets_go_with_the_requests() -> None:
    arrivals = read_workload(WORKLOADS / "mixed_slo.yaml").arrivals(5.0, 60.0)
    seen = {(request.kind, request.priority, request.target_ttft) for request in arrivals}
    assert seen == {("chat", 1, 0.5), ("job", 3, 30.0)}


def test_a_closed_loop_has_requests_without_end(tmp_path: Path) -> None:
    requests = list(itertools.islice(workload(tmp_path, document()).requests(), 5000))
    assert len({request.seed for request in requests}) == 5000
    assert requests[:100] == list(itertools.islice(workload(tmp_path, document()).requests(), 100))


def test_the_objective_is_read(tmp_path: Path) -> None:
    assert workload(tmp_path, document()).slo == Slo(ttft=1.0, itl=0.1)


LENGTHS = [
    ({"distribution": "fixed", "tokens": 5}, (5, 5)),
    ({"distribution": "uniform", "low": 3, "high": 9}, (3, 9)),
    ({"distribution": "lognormal", "median": 20, "sigma": 3.0, "min": 4, "max": 40}, (4, 40)),
    ({"distribution": "exponential", "mean": 30, "max": 50}, (1, 50)),
    ({"distribution": "azure_chat", "scale": 0.1, "max": 100}, (1, 100)),
    ({"distribution": "azure_code", "scale": 0.5}, (2, 3718)),
]


@pytest.mark.parametrize(("lengths", "bounds"), LENGTHS, ids=lambda value: str(value))
def test_lengths_are_within_their_bounds(tmp_path: Path, lengths: dict[str, object], bounds: tuple[int, int]) -> None:
    arrivals = workload(tmp_path, document(prompts=lengths)).arrivals(20.0, 300.0)
    tokens = [request.prompt_tokens for request in arrivals]
    assert bounds[0] <= min(tokens) <= bounds[0] + 2
    assert bounds[1] * 0.8 <= max(tokens) <= bounds[1]


def gaps(requests: list[PlannedRequest]) -> np.ndarray:
    return np.diff([request.at for request in requests])


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_vary_as_they_are_said_to(tmp_path: Path, cv: float) -> None:
    arrivals = {"process": "poisson"} if cv == 1.0 else {"process": "gamma", "cv": cv}
    found = gaps(workload(tmp_path, document(arrivals=arrivals)).arrivals(10.0, 1000.0))
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.1)
    assert found.mean() == pytest.approx(0.1, rel=0.1)


def test_bursts_have_the_whole_rate(tmp_path: Path) -> None:
    arrivals = {"process": "on_off", "on_seconds": 2, "off_seconds": 3}
    times = np.array([r.at for r in workload(tmp_path, document(arrivals=arrivals)).arrivals(10.0, 500.0)])
    assert (times % 5.0 <= 2.0 + 1e-6).all()
    assert len(times) == pytest.approx(5000, rel=0.05)


def test_the_steps_of_a_staircase_have_the_rate_together(tmp_path: Path) -> None:
    arrivals = {"process": "staircase", "levels": [1, 3], "seconds": 100}
    times = np.array([r.at for r in workload(tmp_path, document(arrivals=arrivals)).arrivals(10.0, 200.0)])
    assert (times < 100).sum() == pytest.approx(500, rel=0.15)
    assert (times >= 100).sum() == pytest.approx(1500, rel=0.1)


def test_prefixes_come_on_top_of_the_prompts(tmp_path: Path) -> None:
    requests = workload(tmp_path, document(prefixes={"count": 3, "tokens": 32})).arrivals(5.0, 60.0)
    assert {request.prompt_tokens for request in requests} == {40}
    assert {tuple(request.prompt()[:32]) for request in requests} == {
        tuple(request.prompt()[:32])
        for request in workload(tmp_path, document(prefixes={"count": 3, "tokens": 32})).arrivals(5.0, 60.0, 9)
    }
    assert len({tuple(request.prompt()[:32]) for request in requests}) == 3


def test_each_turn_of_a_chat_begins_with_all_that_was_said(tmp_path: Path) -> None:
    turns = {"distribution": "uniform", "low": 1, "high": 5}
    chats = {"turns": turns, "think_seconds": 4.0, "max_tokens": 60}
    requests = workload(tmp_path, document(chats=chats)).arrivals(3.0, 400.0)
    by_chat = defaultdict(list)
    for request in requests:
        by_chat[request.prefix].append(request)
    # Each turn has a message of 8 tokens and an answer of 8. A turn that would exceed 60 tokens is left out.
    lengths = [[request.prompt_tokens for request in chat] for chat in by_chat.values()]
    # Chats that began before the run lack their first turns.
    whole = [8, 24, 40]
    assert all(chat == whole[whole.index(chat[0]) :][: len(chat)] for chat in lengths)
    assert {len(chat) for chat in lengths} == {1, 2, 3}
    assert 0 < sum(chat[0] > 8 for chat in lengths) < 20
    waits = np.concatenate([gaps(chat) for chat in by_chat.values()])
    assert waits.mean() == pytest.approx(4.0, rel=0.2)
    first, second, *_ = next(chat for chat in by_chat.values() if len(chat) > 1)
    assert second.prompt()[: first.prompt_tokens] == first.prompt()


RATES = {
    "long chats": {
        "chats": {"turns": {"distribution": "fixed", "tokens": 8}, "think_seconds": 20, "max_tokens": 8192},
    },
    "chats of any length, some over their limit": {
        "chats": {"turns": {"distribution": "exponential", "mean": 4, "max": 20}, "think_seconds": 1, "max_tokens": 60},
    },
    "bursts longer than the run": {"arrivals": {"process": "on_off", "on_seconds": 25, "off_seconds": 50}},
    "bursts that the run cuts": {"arrivals": {"process": "on_off", "on_seconds": 5, "off_seconds": 9}},
    "steps that the run cuts": {"arrivals": {"process": "staircase", "levels": [1, 9, 4], "seconds": 12}},
    "steps that end before the run": {"arrivals": {"process": "staircase", "levels": [1, 9], "seconds": 3}},
    "clusters": {"arrivals": {"process": "gamma", "cv": 4.0}},
    "even gaps": {"arrivals": {"process": "gamma", "cv": 0.5}},
}


@pytest.mark.parametrize("name", RATES)
def test_short_runs_have_the_rate_that_is_wanted(tmp_path: Path, name: str) -> None:
    written = workload(tmp_path, document(**RATES[name]))
    found = np.array([len(written.arrivals(2.0, 20.0, seed)) / 20 for seed in range(300)])
    # Four standard errors of the mean, and the error of the mean number of turns.
    assert found.mean() == pytest.approx(2.0, abs=4 * found.std() / np.sqrt(len(found)) + 0.02)


def test_chats_may_have_thousands_of_turns(tmp_path: Path) -> None:
    chats = {"turns": {"distribution": "fixed", "tokens": 10_000}, "think_seconds": 1, "max_tokens": 99_999}
    assert workload(tmp_path, document(chats=chats)).arrivals(2.0, 10_000.0)


def test_the_first_turns_of_a_short_run_are_of_chats_of_any_age(tmp_path: Path) -> None:
    chats = {"turns": {"distribution": "fixed", "tokens": 8}, "think_seconds": 20, "max_tokens": 8192}
    written = workload(tmp_path, document(chats=chats))
    turns = [request.prompt_tokens // 16 for seed in range(100) for request in written.arrivals(2.0, 20.0, seed)]
    shares = np.bincount(turns) / len(turns)
    assert shares == pytest.approx([1 / 8] * 8)


def test_chats_of_which_no_turn_fits_are_refused(tmp_path: Path) -> None:
    chats = {"turns": {"distribution": "fixed", "tokens": 8}, "think_seconds": 20, "max_tokens": 15}
    with pytest.raises(WorkloadError, match=r"streams\.only: chats\.max_tokens is 15; .* no turn fits"):
        workload(tmp_path, document(chats=chats))


TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:00.0000000,100,10
2023-11-16 18:17:01.0000000,200,20
2023-11-16 18:17:04.0000000,300,30
"""


def test_a_trace_is_replayed_at_the_rate_that_is_wanted_and_again(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    written = document()
    written["streams"] = {"old": {"rate": 0.5, "replay": "trace.csv", "priority": 2}}
    requests = workload(tmp_path, written).arrivals(rate=1.0, seconds=5.0)
    # Three requests in 4 s and a mean gap of 2 s before the first one repeats make 6 s, replayed in half the time.
    assert [request.at for request in requests] == [0.0, 0.5, 2.0, 3.0, 3.5]
    assert [request.prompt_tokens for request in requests] == [100, 200, 300, 100, 200]
    assert [request.output_tokens for request in requests] == [10, 20, 30, 10, 20]
    assert {request.priority for request in requests} == {2}
    assert len({request.seed for request in requests}) == 5


def test_a_closed_loop_replays_a_trace_to_its_end_and_again(tmp_path: Path) -> None:
    """The loop draws its requests in blocks of about a thousand."""
    times = [f"2023-11-16 18:{second // 60:02}:{second % 60:02}" for second in range(2500)]
    rows = [f"{time},{number},1" for number, time in enumerate(times, 1)]
    (tmp_path / "trace.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    written = document()
    written["streams"] = {"old": {"rate": 3.0, "replay": "trace.csv"}}
    requests = list(itertools.islice(workload(tmp_path, written).requests(), 6000))
    assert [request.prompt_tokens for request in requests] == [1 + number % 2500 for number in range(6000)]
    assert len({request.seed for request in requests}) == 6000


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("\n".join(TRACE.splitlines()[:2]), r"streams\.old: .* has 1 requests; it must have at least 2"),
        (TRACE.replace(":01.", ":00.").replace(":04.", ":00."), r"streams\.old: .* has only requests of the same time"),
        ("a,b\n1,2\n", r"streams\.old: .* must have columns TIMESTAMP, ContextTokens and GeneratedTokens"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_with_the_file(tmp_path: Path, trace: str, message: str) -> None:
    (tmp_path / "trace.csv").write_text(trace)
    written = document()
    written["streams"] = {"old": {"rate": 0.5, "replay": "trace.csv"}}
    with pytest.raises(WorkloadError, match=message):
        workload(tmp_path, written)


WRONG = [
    (document(rate=0), "streams.only.rate is 0: Input should be greater than 0"),
    (document(rate="2"), "streams.only.rate is '2': Input should be a valid number"),
    (document(colour="red"), "streams.only.colour is not a known field"),
    (document(prompts={"distribution": "fixed"}), "streams.only.prompts.tokens is missing"),
    (
        document(prompts={"distribution": "uniform", "low": 9, "high": 3}),
        "streams.only.prompts: low is 9; it must be at most high, 3",
    ),
    (
        document(prompts={"distribution": "lognormal", "median": 5, "sigma": 1, "min": 9, "max": 3}),
        "streams.only.prompts: min is 9; it must be at most max, 3",
    ),
    (document(prompts={"distribution": "normal"}), "'fixed', 'uniform', 'lognormal', 'exponential'"),
    (document(arrivals={"process": "gamma", "cv": -1}), "arrivals.cv is -1: Input should be greater than 0"),
    (document(arrivals={"process": "gamma", "cv": 1e-300}), "arrivals: cv is 1e-300; it must be from 0.001 to 1000"),
    (document(arrivals={"process": "gamma", "cv": 1e5}), "arrivals: cv is 100000; it must be from 0.001 to 1000"),
    (
        document(arrivals={"process": "staircase", "levels": [], "seconds": 1}),
        "levels is []: List should have at least 1",
    ),
    (document(temperature=-1), "streams.only.temperature is -1: Input should be greater than or equal to 0"),
    (document(top_p=0), "streams.only.top_p is 0: Input should be greater than 0"),
    (document(top_p=1.5), "streams.only.top_p is 1.5: Input should be less than or equal to 1"),
    (document(tenants={"a": 0}), "tenants.a is 0: Input should be greater than 0"),
    (document(tenants={"a": 1e308}), "tenants.a is 1e+308: Input should be less than or equal to 1000000000"),
    (
        document(prefixes={"count": 10**20, "tokens": 1}),
        f"count is {10**20}: Input should be less than or equal to 10000000",
    ),
    (
        document(chats={"turns": {"distribution": "fixed", "tokens": 10**7}, "think_seconds": 1, "max_tokens": 99}),
        "streams.only: chats.turns reaches 10000000; it must be at most 10000",
    ),
    (
        document(prefixes={"count": 1, "tokens": 1}, chats={"turns": FIXED, "think_seconds": 0, "max_tokens": 9}),
        "streams.only: prefixes and chats are both given; it must be one of them at most",
    ),
    ({**document(), "streams": {}}, "streams is {}: Dictionary should have at least 1 item"),
    ({**document(), "slo": {"ttft": 1.0}}, "slo.itl is missing"),
    ({**document(), "seed": 1.5}, "seed is 1.5: Input should be a valid integer"),
    ({**document(), "seed": -1}, "seed is -1: Input should be greater than or equal to 0"),
    (
        document(outputs={"distribution": "fixed", "tokens": 10**12}),
        "outputs.tokens is 1000000000000: Input should be less than or equal to 10000000",
    ),
    ({**document(), "streams": {"old": {"replay": "a.csv"}}}, "streams.old.rate is missing"),
    ("a text", "the file is 'a text': Input should be a valid dictionary"),
]


@pytest.mark.parametrize(("written", "message"), WRONG, ids=[message for _, message in WRONG])
def test_nonsense_is_refused_with_its_place_and_bound(tmp_path: Path, written: object, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        workload(tmp_path, written)
    assert message in str(caught.value)
    assert str(tmp_path / "test.yaml") in str(caught.value)


def test_what_is_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text("about: [")
    with pytest.raises(WorkloadError, match=r"test\.yaml is not valid YAML"):
        read_workload(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match=r"test\.yaml is not valid YAML"):
        read_workload(path)


def test_a_file_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text("about: !!python/object/apply:os.getcwd []")
    with pytest.raises(WorkloadError, match="is not valid YAML"):
        read_workload(path)
