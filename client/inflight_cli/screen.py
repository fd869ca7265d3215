"""The layout of `inflight top`: figures in frames, and a chart of the batch over time."""

from collections.abc import Sequence
from dataclasses import astuple

from rich.columns import Columns
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from inflight_client import UnfinishedRequest
from inflight_client.load import Latency, Load, Turnover

# Two frames fit next to each other in 80 columns, four in 160.
_FRAME_WIDTH = 39
# Rows around the chart on a terminal with 80 columns.
_OTHER_ROWS = 18
_MIN_ROWS, _MAX_ROWS = 4, 16
# Rows of the frame and the heading of the list of requests.
_LIST_SIDES = 3
# A bar of the chart and the space after it. Numbers up to 9999 fit below a bar.
_COLUMN_WIDTH = 5
_LABEL_WIDTH = 8
_FRAME_SIDES = 4
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def screen(
    load: Load,
    turnovers: Sequence[Turnover],
    requests: Sequence[UnfinishedRequest],
    max_num_seqs: int,
    size: ConsoleDimensions,
) -> RenderableType:
    """Draw the whole screen for a terminal of this size. `turnovers` and `requests` begin with the oldest.

    The chart and the requests share the rows below the figures. A terminal with too few rows shows only the chart.
    """
    spare = size.height - _OTHER_ROWS
    listed = requests[: max(0, spare - max(spare // 2, _MIN_ROWS) - _LIST_SIDES)]
    rows = spare - (len(listed) + _LIST_SIDES if listed else 0)
    frames = [_requests(load), _tokens(load), _latencies(load), _cache(load)]
    chart = _chart(turnovers, max_num_seqs, size.width, min(max(rows, _MIN_ROWS), _MAX_ROWS))
    return Group(
        Columns(frames, width=_FRAME_WIDTH, padding=(0, 1)),
        _frame(f"batch, {max_num_seqs} slots", chart, None),
        *([_frame("oldest requests", _list(listed), None)] if listed else []),
    )


def _list(requests: Sequence[UnfinishedRequest]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in range(2):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for _ in range(2):
        table.add_column(justify="right")
    table.add_row("request", "tenant", "age", "tokens", style="dim")
    for request in requests:
        # `Text` instead of str: clients choose the names, and rich would interpret markup in a str.
        names = Text(_printable(request.request_id)), Text(_printable(request.tenant))
        table.add_row(*names, _duration(request.seconds), str(request.output_tokens))
    return table


def plain(load: Load, requests: Sequence[UnfinishedRequest], max_num_seqs: int) -> str:
    """Return the same as text: one line per value with its name, then a tab-separated table of the requests.

    Times are in seconds and fractions between 0 and 1. `-` means that nothing was measured.
    """
    latencies = {"first_token": load.first_token, "inter_token": load.inter_token, "queue": load.queue}
    figures: dict[str, float | None] = {
        "running": load.running,
        "max_num_seqs": max_num_seqs,
        "waiting": load.waiting,
        "prompt_tokens_per_second": load.prompt_tokens_per_second,
        "generated_tokens_per_second": load.generated_tokens_per_second,
        "finished_per_second": load.finished_per_second,
        "refused_per_second": load.refused_per_second,
        **{f"{name}_p50_seconds": latency.p50 for name, latency in latencies.items()},
        **{f"{name}_p95_seconds": latency.p95 for name, latency in latencies.items()},
        **{f"{name}_p99_seconds": latency.p99 for name, latency in latencies.items()},
        "kv_cache_usage": load.blocks_used / load.blocks,
        "prefix_hit_rate": load.prefix_hit_rate,
        "drafted_tokens_per_second": load.drafted_tokens_per_second,
        "acceptance_rate": load.acceptance_rate,
        "step_fill": load.step_fill,
        "preemptions": load.preemptions,
    }
    lines = [f"{name} {'-' if value is None else f'{value:.6g}'}" for name, value in figures.items()]
    lines += ["", "request_id\ttenant\tseconds\toutput_tokens"]
    lines += [f"{_printable(r.request_id)}\t{_printable(r.tenant)}\t{r.seconds}\t{r.output_tokens}" for r in requests]
    return "\n".join(lines)


def _printable(name: str) -> str:
    """Replace the characters of a name that could end the line or move the terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in name) or "-"


def _frame(title: str, body: RenderableType, width: int | None = _FRAME_WIDTH) -> Panel:
    return Panel(body, title=title, title_align="left", border_style="dim", width=width)


def _rows(*rows: tuple[str, RenderableType]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _requests(load: Load) -> Panel:
    rows = (
        ("running", str(load.running)),
        ("waiting", str(load.waiting)),
        ("finished/s", f"{load.finished_per_second:.1f}"),
        ("refused/s", f"{load.refused_per_second:.1f}"),
    )
    return _frame("requests", _rows(*rows))


def _tokens(load: Load) -> Panel:
    rows = (
        ("generated/s", f"{load.generated_tokens_per_second:.0f}"),
        ("prompt/s", f"{load.prompt_tokens_per_second:.0f}"),
        ("prefix hits", _share(load.prefix_hit_rate)),
        ("steps filled", _share(load.step_fill)),
    )
    if load.drafted_tokens_per_second is not None:
        # In place of a row, so that the frames keep their height.
        drafted = f"{load.drafted_tokens_per_second:.0f}, {_share(load.acceptance_rate)} right"
        rows = (*rows[:2], ("drafted/s", drafted), ("prefix hits", _share(load.prefix_hit_rate)))
    return _frame("tokens", _rows(*rows))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _latencies(load: Load) -> Panel:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column()
    for _ in range(3):
        table.add_column(justify="right")
    table.add_row("", "p50", "p95", "p99", style="dim")
    for name, latency in (
        ("first token", load.first_token),
        ("next token", load.inter_token),
        ("in queue", load.queue),
    ):
        table.add_row(name, *_durations(latency))
    return _frame("latency", table)


def _durations(latency: Latency) -> list[str]:
    return ["-" if value is None else _duration(value) for value in astuple(latency)]


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def _cache(load: Load) -> Panel:
    usage = _rows(
        ("blocks", f"{load.blocks_used} of {load.blocks}"),
        ("used", _share(load.blocks_used / load.blocks)),
        ("preemptions", str(load.preemptions)),
    )
    return _frame("KV cache", Group(usage, ProgressBar(total=load.blocks, completed=load.blocks_used)))


def _chart(turnovers: Sequence[Turnover], max_num_seqs: int, width: int, rows: int) -> Text:
    """Draw one bar per refresh, which shows how full the batch is.

    Below the bars are the numbers of requests that run, joined and left.
    """
    room = max(1, (width - _FRAME_SIDES - _LABEL_WIDTH) // _COLUMN_WIDTH)
    shown = turnovers[-room:]
    lines = [
        _line(
            str(max_num_seqs) if row == rows else "",
            [_cell(rows * turnover.running / max_num_seqs, row) for turnover in shown],
            "cyan",
        )
        for row in range(rows, 0, -1)
    ]
    lines.append(_line("running", [str(turnover.running) for turnover in shown], "cyan"))
    lines.append(_line("joined", [f"+{turnover.joined}" if turnover.joined else "" for turnover in shown], "green"))
    lines.append(_line("left", [f"-{turnover.left}" if turnover.left else "" for turnover in shown], "red"))
    return Text("\n").join(lines)


def _line(label: str, cells: Sequence[str], style: str) -> Text:
    return Text.assemble(
        (label.rjust(_LABEL_WIDTH - 1) + " ", "dim"),
        ("".join(cell.rjust(_COLUMN_WIDTH - 1) + " " for cell in cells), style),
        no_wrap=True,
    )


def _cell(height: float, row: int) -> str:
    """Return the part of a bar that is visible in one row. `height` is in rows; `row` counts from 1 at the bottom."""
    eighths = round(8 * height) - 8 * (row - 1)
    return _EIGHTHS[min(8, max(0, eighths))] * (_COLUMN_WIDTH - 1)
