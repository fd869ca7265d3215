"""Writes the report of a sweep: an HTML page, Markdown, plots, a table and the records of all requests."""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from load_tests.capacity import figures, server_figures
from load_tests.capacity.columns import SERVER_COLUMNS, LevelColumn, client_columns
from load_tests.capacity.drawing import INCHES_HIGH, blank, legend, png, svg
from load_tests.capacity.level import load_text
from load_tests.capacity.recommendation import recommendation, warnings
from load_tests.capacity.result import Sweep
from load_tests.records import write_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Plot:
    """A plot of a sweep."""

    name: str
    """Name of its file without the suffix."""
    draw: Callable[[Sweep, "Axes"], None]
    inches_high: float = INCHES_HIGH


CLIENT_PLOTS = (
    Plot("throughput", figures.throughput),
    Plot("ttft_against_throughput", figures.ttft_against_throughput),
    Plot("itl_against_throughput", figures.itl_against_throughput),
    Plot("goodput", figures.goodput),
    Plot("ttft", figures.ttft),
    Plot("itl", figures.itl),
    Plot("e2e", figures.e2e),
)
SERVER_PLOTS = (
    Plot("queue", server_figures.queue),
    Plot("prefill_and_decode", server_figures.prefill_and_decode),
    Plot("utilisation", server_figures.utilisation),
)
TIMELINE_PLOT = Plot("batch_timeline", server_figures.batch_timeline, inches_high=4.8)


def write_report(sweep: Sweep, folder: Path) -> None:
    """Write report.html and report.md with their plots, levels.csv, and raw/ with all records and samples."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {plot.name: _draw(plot, sweep, folder) for plot in plots(sweep)}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(["html.jinja"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    contents = {"sweep": sweep, "drawings": drawings, **_contents(sweep)}
    for name in ("report.html", "report.md"):
        (folder / name).write_text(environment.get_template(f"{name}.jinja").render(contents))
    _write_csv(sweep, folder / "levels.csv")
    _write_raw(sweep, folder / "raw")


def plots(sweep: Sweep) -> list[Plot]:
    """The plots for which the sweep has data."""
    from_metrics = SERVER_PLOTS if _has_metrics(sweep) else ()
    from_trace = (TIMELINE_PLOT,) if sweep.timeline else ()
    return [*CLIENT_PLOTS, *from_metrics, *from_trace]


def _has_metrics(sweep: Sweep) -> bool:
    return any(repeat.server for level in sweep.levels for repeat in level.repeats)


def _draw(plot: Plot, sweep: Sweep, folder: Path) -> str:
    with blank(plot.inches_high) as axes:
        plot.draw(sweep, axes)
        legend(axes)
        figure = axes.get_figure(root=True)
        assert figure is not None
        png(figure, folder / f"{plot.name}.png")
        return svg(figure)


def _contents(sweep: Sweep) -> dict[str, Any]:
    """Variables of the templates, besides the plots."""
    return {
        "recommendation": recommendation(sweep),
        "warnings": warnings(sweep),
        "client_table": _table(sweep, client_columns(sweep.slo)),
        "server_table": _table(sweep, SERVER_COLUMNS) if _has_metrics(sweep) else None,
        "client_plots": [plot.name for plot in CLIENT_PLOTS],
        "server_plots": [plot.name for plot in plots(sweep) if plot not in CLIENT_PLOTS],
    }


def _table(sweep: Sweep, columns: Sequence[LevelColumn]) -> list[list[str]]:
    """A header row, and one row for each level."""
    rows = [[load_text(level.load), *(column.cell(level) for column in columns)] for level in sweep.levels]
    return [[sweep.kind.unit, *(column.title for column in columns)], *rows]


def _write_csv(sweep: Sweep, path: Path) -> None:
    """Write one row for each level and repeat. A cell is empty where the measure is not defined."""
    columns = [*client_columns(sweep.slo), *SERVER_COLUMNS]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([sweep.kind.unit, "repeat", *(column.title for column in columns)])
        for level in sweep.levels:
            for number, repeat in enumerate(level.repeats, 1):
                values = [column.value(repeat) for column in columns]
                writer.writerow([level.load, number, *("" if value != value else value for value in values)])


def _write_raw(sweep: Sweep, folder: Path) -> None:
    """Write two JSON-lines files for each repeat: its requests, and samples of the server's metrics."""
    for level in sweep.levels:
        for number, repeat in enumerate(level.repeats, 1):
            stem = f"{sweep.kind.name}-{load_text(level.load, 4)}-{number}"
            write_records(repeat.run.records, folder / f"{stem}.requests.jsonl")
            samples = "".join(f"{json.dumps(asdict(sample))}\n" for sample in repeat.server)
            (folder / f"{stem}.server.jsonl").write_text(samples)
