"""The last minutes of a model, computed from readings of its metrics."""

from collections import deque
from dataclasses import dataclass, fields

from inflight_client.load import Load, Reading, load

HISTORY_SECONDS = 300.0
RATE_SECONDS = 5.0
"""Rates cover so many seconds. In fewer, few requests end."""
LATENCY_SECONDS = 60.0
# After a longer time in which nobody watched, the figures of one step would be means over that time.
_LONGEST_GAP = 3.0
# The model updates its metrics twice a second. In a plot of five minutes, nobody would see every update.
_SECONDS_BETWEEN_POINTS = 0.75


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of one moment, all in plain units: tokens, requests, seconds and fractions between 0 and 1.

    None means that nothing was measured.
    """

    time: float
    """In seconds since 1970."""
    running: int
    waiting: int
    kv_cache_usage: float
    prefill_tokens_per_step: float | None
    """Of the steps since the point before, or, while a step takes longer, of those before it. None if nothing runs."""
    decode_tokens_per_step: float | None
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    finished_per_second: float
    refused_per_second: float
    prefix_hit_rate: float | None
    first_token_p50: float | None
    first_token_p99: float | None
    inter_token_p50: float | None
    inter_token_p99: float | None


class History:
    """The points of the last five minutes, as far as somebody watched."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque()
        self._kept: deque[Reading] = deque()
        """The readings of the last 60 seconds, the oldest first."""
        self._newest: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Add a reading whose time is that of its metrics. One that comes too soon after the last one is left out.

        Raises:
            KeyError: a metric is missing.
        """
        before = self._newest
        if before is not None and 0 <= reading.seconds - before.seconds < _SECONDS_BETWEEN_POINTS:
            return
        if before is not None and reading.seconds < before.seconds:  # The clock was set back.
            self._points.clear()
            self._kept.clear()
        self._newest = reading
        while self._kept and self._kept[0].seconds < reading.seconds - LATENCY_SECONDS:
            self._kept.popleft()
        while self._points and self._points[0].time < reading.seconds - HISTORY_SECONDS:
            self._points.popleft()
        if before is not None and self._kept and reading.seconds - before.seconds <= _LONGEST_GAP:
            recent = next(kept for kept in self._kept if kept.seconds >= reading.seconds - RATE_SECONDS)
            step, minute = load(before, reading), load(self._kept[0], reading)
            self._points.append(_point(reading.seconds, step, load(recent, reading), minute, self._last_step(step)))
        self._kept.append(reading)

    def _last_step(self, step: Load) -> tuple[float | None, float | None]:
        """Return the tokens of prompts and of answers in a step."""
        if step.running and step.decode_tokens_per_step is None and self._points:
            return self._points[-1].prefill_tokens_per_step, self._points[-1].decode_tokens_per_step
        return step.prefill_tokens_per_step, step.decode_tokens_per_step

    def since(self, time: float) -> list[Point]:
        """Return the points after a time, in seconds since 1970."""
        return [point for point in self._points if point.time > time]


def columns(points: list[Point]) -> dict[str, list[float | None]]:
    """Return the points as one list for each figure, which is half as long as JSON."""
    return {
        field.name: [None if (value := getattr(point, field.name)) is None else round(value, 5) for point in points]
        for field in fields(Point)
    }


def _point(time: float, now: Load, recent: Load, minute: Load, step: tuple[float | None, float | None]) -> Point:
    prefill, decode = step
    return Point(
        time=time,
        running=now.running,
        waiting=now.waiting,
        kv_cache_usage=now.blocks_used / now.blocks,
        prefill_tokens_per_step=prefill,
        decode_tokens_per_step=decode,
        prompt_tokens_per_second=recent.prompt_tokens_per_second,
        generated_tokens_per_second=recent.generated_tokens_per_second,
        finished_per_second=recent.finished_per_second,
        refused_per_second=recent.refused_per_second,
        prefix_hit_rate=minute.prefix_hit_rate,
        first_token_p50=minute.first_token.p50,
        first_token_p99=minute.first_token.p99,
        inter_token_p50=minute.inter_token.p50,
        inter_token_p99=minute.inter_token.p99,
    )
