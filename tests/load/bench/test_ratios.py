"""What the regression guard reports as a regression."""

import json
from pathlib import Path

import pytest

from load_tests.bench import ratios as bench_ratios
from load_tests.bench.ratios import ENGINE, NOISE, PEER, SERVER, Ratios, comparison, ratios_of, worse
from load_tests.bench.report import Measurement, Observed, Round
from load_tests.bench.systems import SYSTEMS
from load_tests.loads import GREEDY, LOADS


def measured(system: str, at_once: int, *speeds: float, load: str = GREEDY) -> Measurement:
    return Measurement(load, system, at_once, 8, [Round(1000, 1000 / speed, Observed(), 0.0) for speed in speeds])


def ratios_of_a_run() -> Ratios:
    greedy = [measured(*PEER, 90, 110), measured(ENGINE, 32, 400), measured(SERVER, 32, 300), measured(SERVER, 64, 9)]
    sampled = [measured(ENGINE, 32, 100, load="top_p"), measured(SERVER, 32, 150, load="top_p")]
    return ratios_of("here", [*greedy, *sampled], {"8 decodes": 0.8})


def test_ratios_are_of_one_run() -> None:
    assert ratios_of_a_run().values == {
        "products alone / step, 8 decodes": 0.8,
        "in process / transformers' static batches of 32, 32 at once": pytest.approx(4),
        "behind Triton / in process, 32 at once": pytest.approx(0.75),
        "top_p / greedy, in process, 32 at once": pytest.approx(0.25),
        "top_p / greedy, behind Triton, 32 at once": pytest.approx(0.5),
    }


def test_without_its_peer_the_engine_has_no_ratio_to_it() -> None:
    assert ratios_of("here", [measured(ENGINE, 32, 400)], {}).values == {}


def test_only_ratios_of_measured_loads_are_judged() -> None:
    committed = ratios_of_a_run()
    assert committed.under(LOADS) == committed
    assert [name for name in committed.values if name not in committed.under([GREEDY]).values] == [
        "top_p / greedy, in process, 32 at once",
        "top_p / greedy, behind Triton, 32 at once",
    ]
    assert list(committed.under(["top_p"]).values) == ["products alone / step, 8 decodes"]


def test_what_the_guard_divides_is_measured() -> None:
    systems = {(system.name, system.at_once) for system in SYSTEMS}
    assert PEER in systems
    assert {name for name, _ in systems} >= {ENGINE, SERVER}


def test_a_fall_beyond_the_noise_is_a_regression_and_so_is_a_ratio_that_is_gone() -> None:
    committed = Ratios("here", {"a": 1.0, "b": 1.0, "gone": 1.0})
    now = Ratios("here", {"a": 1.0 - NOISE - 0.01, "b": 1.0 - NOISE + 0.01, "new": 0.1})
    assert worse(now, committed) == ["a", "gone"]
    text = comparison(now, committed)
    assert "| a | 0.84 | 1.00 | -16% |" in text
    assert "| new | 0.10 | - | new |" in text
    assert text.endswith(
        "Worse by more than the noise of 15%, or gone: a; gone. 1 of 3 were not judged, as they are not committed."
    )
    assert comparison(committed, committed).endswith("None fell by more than the noise of 15%.")


def test_another_machine_is_not_judged() -> None:
    now = Ratios("here", {"a": 0.1})
    assert worse(now, None) == []
    assert comparison(now, None).endswith("Not judged: none are committed for here.")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    file.write_text("{}")
    assert Ratios.read(file, "here") is None
    for ratios in (Ratios("there", {"a": 2.0}), Ratios("here", {"b": 1.0}), Ratios("here", {"a": 1.23456})):
        ratios.write(file)
    assert Ratios.read(file, "here") == Ratios("here", {"a": 1.235})
    assert Ratios.read(file, "there") == Ratios("there", {"a": 2.0})


def test_the_committed_ratios_are_those_that_are_measured() -> None:
    at_once = {system.at_once for system in SYSTEMS if system.name == SERVER}
    for values in json.loads(bench_ratios.COMMITTED.read_text()).values():
        assert {f"behind Triton / in process, {each} at once" for each in at_once} <= values.keys()
