"""Reports of synthetic sweeps are complete, load nothing from elsewhere, and are legible with few and with many
levels."""

import csv
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from load_tests.capacity.drawing import blank, legend
from load_tests.capacity.level import Level
from load_tests.capacity.recommendation import recommendation, warnings
from load_tests.capacity.report import Plot, plots, write_report
from load_tests.capacity.result import RATE, Sweep
from load_tests.records import Run, read_records
from load_tests.slo import Slo
from tests.load.capacity.synthetic_sweeps import SLO, SLOTS, sweep

LOADS = {1: [4.0], 3: [8.0, 32.0, 128.0], 25: [float(load) for load in range(1, 100, 4)]}
RATES = [0.125, 0.595, 0.648, 0.707, 1.19, 2.38]
FOUND = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 38.0, 45.0, 64.0, 128.0]
MAX_LEGEND_ENTRIES = 6


@pytest.fixture(scope="module", params=LOADS)
def some_sweep(request: pytest.FixtureRequest) -> Sweep:
    return sweep(LOADS[request.param])


@pytest.fixture(scope="module")
def sweep_of_rates() -> Sweep:
    """The same runs as requests per second, the kind of load with the longest unit and numbers."""
    shown = sweep(LOADS[25][: len(RATES)])
    levels = [replace(level, load=rate) for level, rate in zip(shown.levels, RATES, strict=True)]
    found = replace(shown.found, levels=levels, capacity=levels[2], broken=levels[3])
    return replace(shown, kind=RATE, found=found)


@pytest.fixture(scope="module")
def folder(some_sweep: Sweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(some_sweep, folder)
    return folder


def test_the_page_has_all_its_sections_and_plots(folder: Path, some_sweep: Sweep) -> None:
    page = (folder / "report.html").read_text()
    for heading in ("What the clients saw", "What the server did", "Configuration", "Workload, machine and versions"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == len(plots(some_sweep)) == 11
    assert page.count("<tr>") == 2 * (1 + len(some_sweep.levels))
    assert recommendation(some_sweep) in page
    assert "max_num_seqs" in page
    assert "prefers-color-scheme: dark" in page


def test_the_page_needs_nothing_from_elsewhere(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert not re.findall(r"<(?:script|link|img|iframe|object)\b", page)
    assert not re.findall(r"@import|@font-face", page)
    references = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)|url\(([^)]*)\)""", page)
    assert references
    assert all((attribute or style).startswith("#") for attribute, style in references)
    # Other text that looks like an address is the name of an XML vocabulary, which is not fetched.
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
    }


def test_markdown_shows_the_pictures_that_lie_beside_it(folder: Path, some_sweep: Sweep) -> None:
    text = (folder / "report.md").read_text()
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert set(pictures) == {f"{plot.name}.png" for plot in plots(some_sweep)} == {p.name for p in folder.glob("*.png")}
    assert recommendation(some_sweep) in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) == 2 * (2 + len(some_sweep.levels))


def test_the_table_has_a_row_for_each_level_and_repeat(folder: Path, some_sweep: Sweep) -> None:
    with (folder / "levels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = [(float(row["users"]), int(row["repeat"])) for row in rows]
    assert pairs == [(level.load, number) for level in some_sweep.levels for number in (1, 2)]
    measured = [repeat.throughput for level in some_sweep.levels for repeat in level.repeats]
    assert [float(row["output (tokens/s)"]) for row in rows] == measured


def test_all_requests_are_kept(folder: Path, some_sweep: Sweep) -> None:
    level = some_sweep.levels[-1]
    assert read_records(folder / "raw" / f"users-{level.load:g}-2.requests.jsonl") == level.repeats[1].run.records
    assert len((folder / "raw" / f"users-{level.load:g}-1.server.jsonl").read_text().splitlines()) == 20


@pytest.fixture(scope="module")
def drawn(some_sweep: Sweep) -> dict[str, tuple[Figure, Axes]]:
    """All plots of a sweep, by name."""
    return {plot.name: draw(plot, some_sweep) for plot in plots(some_sweep)}


def draw(plot: Plot, shown: Sweep) -> tuple[Figure, Axes]:
    with blank(plot.inches_high) as axes:
        plot.draw(shown, axes)
        legend(axes)
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.draw_without_rendering()
    return figure, axes


def test_plots_say_what_they_show_in_which_units(drawn: dict[str, tuple[Figure, Axes]]) -> None:
    for name, (_, axes) in drawn.items():
        assert axes.get_title(loc="left")
        assert axes.get_xlabel()
        assert re.search(r"\(.+\)$|requests|tokens/s", axes.get_ylabel()), name


def test_no_label_lies_on_another_or_outside(drawn: dict[str, tuple[Figure, Axes]]) -> None:
    check_labels(drawn)


def test_nor_does_one_of_request_rates(sweep_of_rates: Sweep) -> None:
    check_labels({plot.name: draw(plot, sweep_of_rates) for plot in plots(sweep_of_rates)})


def check_labels(drawn: dict[str, tuple[Figure, Axes]]) -> None:
    for name, (figure, axes) in drawn.items():
        boxes = label_boxes(axes)
        assert len(boxes) > 5
        for (one, box), (other, other_box) in combinations(boxes, 2):
            assert not Bbox.intersection(box, other_box), f"{name}: {one!r} lies on {other!r}"
        for text, box in boxes:
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, f"{name}: {text!r} is cut off"


def label_boxes(axes: Axes) -> list[tuple[str, Bbox]]:
    """All visible texts of a plot with their bounding boxes."""
    (low_x, high_x), (low_y, high_y) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    texts = [label for x, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low_x <= x <= high_x]
    texts += [label for y, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True) if low_y <= y <= high_y]
    title = axes.title if axes.get_title() else axes._left_title
    texts += [*axes.texts, title, axes.xaxis.label, axes.yaxis.label]
    for shown in axes.figure.legends:
        texts += shown.get_texts()
        assert len(shown.get_texts()) <= MAX_LEGEND_ENTRIES
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]


def test_the_recommendation_is_what_the_system_is() -> None:
    text = recommendation(sweep(FOUND))
    # A formula with 32 slots whose steps have up to 96 tokens; with 45 users the wait is just short of half a second.
    assert text.startswith(
        "Set max_num_seqs to 32 (now 64) and max_num_batched_tokens to 128 (now 512); expect 45 users"
    )
    assert "(objective: 500 ms and 100 ms)" in text


def test_settings_are_not_recommended_beyond_those_that_were_measured() -> None:
    shown = sweep([1.0, 2.0, 4.0])
    text = recommendation(shown)
    assert "Set max_num_seqs to 8" in text
    assert "at least 4 users" in text
    assert any("lower bound" in warning for warning in warnings(shown))


def test_what_makes_figures_doubtful_is_said() -> None:
    quiet = replace(sweep(FOUND), others=0.05)
    assert warnings(quiet) == []
    assert any("used 40% of the processors" in warning for warning in warnings(replace(quiet, others=0.4)))
    first = quiet.levels[0]
    slow = Level(first.load, [replace(repeat, run=late(repeat.run)) for repeat in first.repeats])
    noisy = replace(quiet, found=replace(quiet.found, levels=[slow, *quiet.levels[1:]]))
    assert any(warning.startswith("1 user broke the objective") for warning in warnings(noisy))
    busy = Level(first.load, [replace(repeat, run=Run(repeat.run.records, 0.9)) for repeat in first.repeats])
    noisy = replace(quiet, found=replace(quiet.found, levels=[busy, *quiet.levels[1:]]))
    assert any("generator was busy 90%" in warning for warning in warnings(noisy))


def test_targets_that_requests_have_themselves_are_said(tmp_path: Path) -> None:
    shown = sweep([1.0, 2.0])
    own = [
        Level(level.load, [replace(repeat, run=with_own_target(repeat.run)) for repeat in level.repeats])
        for level in shown.levels
    ]
    shown = replace(shown, found=replace(shown.found, levels=own))
    assert "(objective: 500 ms, or the request's own target, and 100 ms)" in recommendation(shown)
    write_report(shown, tmp_path)
    assert "within\n0.5 s, or the request's own target, and 99%\nof the gaps" in (tmp_path / "report.md").read_text()


def with_own_target(run: Run) -> Run:
    return Run([replace(record, target_ttft=2.0) for record in run.records], run.generator_busy)


def late(run: Run) -> Run:
    """The same requests, planned a second earlier."""
    return Run([replace(record, scheduled=record.scheduled - 1) for record in run.records], run.generator_busy)


def test_a_server_that_breaks_the_objective_at_once_is_said_to_be_too_slow() -> None:
    text = recommendation(sweep([1.0, 2.0], slo=Slo(1e-3, 1e-3)))
    assert text.startswith("Already 1 user, the lowest load tried, broke the objective")


def test_of_a_server_that_is_none_of_ours_the_clients_view_is_reported(tmp_path: Path) -> None:
    shown = sweep([1.0, 2.0, float(SLOTS), 64.0], ours=False)
    write_report(shown, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 7
    assert "none of this project's metrics" in page
    assert recommendation(shown).startswith("Expect")


def test_what_users_send_cannot_break_the_page(tmp_path: Path) -> None:
    shown = sweep([1.0, 2.0])
    shown = Sweep(shown.kind, SLO, shown.found, {"workload": "<script>alert(1)</script>"}, {"model": "a & b"})
    write_report(shown, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "a &amp; b" in page


def test_failures_in_one_of_three_repeats_are_a_warning() -> None:
    shown = sweep([8.0])
    good = shown.levels[0].repeats[0]
    bad = replace(good, run=Run([replace(record, error="ServerOverloaded") for record in good.run.records], 0.1))
    found = replace(shown.found, levels=[Level(8.0, [good, bad, good])])
    assert any("100.0% of a repeat's requests failed" in warning for warning in warnings(replace(shown, found=found)))


def test_an_objective_of_seconds_is_legible(tmp_path: Path) -> None:
    write_report(sweep([8.0], slo=Slo(ttft=20.0, itl=2.0)), tmp_path)
    for name in ("report.md", "report.html"):
        assert "2000 ms" in (tmp_path / name).read_text()


def test_levels_without_a_finite_tail_are_drawn_too(tmp_path: Path) -> None:
    """If many requests fail, the 95th percentile is infinite."""
    shown = sweep([1.0, 2.0, 4.0])
    last = shown.levels[-1]
    failed = [replace(record, error="ServerOverloaded") for record in last.repeats[0].run.records]
    overloaded = Level(last.load, [replace(last.repeats[0], run=Run(failed, 0.1))])
    assert np.isinf(overloaded.repeats[0].ttft).all()
    found = replace(shown.found, levels=[*shown.levels[:-1], overloaded])
    write_report(replace(shown, found=found), tmp_path / "failed")
    page = (tmp_path / "failed" / "report.html").read_text()
    assert page.count("infinite, not drawn: 1") == 1
    assert "Time to first token of answered requests, by load" in page
    nothing = Level(last.load, [replace(last.repeats[0], begin=1e6, end=2e6)])
    assert not nothing.repeats[0].counted.records
    found = replace(shown.found, levels=[*shown.levels[:-1], nothing])
    write_report(replace(shown, found=found), tmp_path / "nothing")
    assert (tmp_path / "nothing" / "report.html").exists()
