"""The last minutes of a model, computed from readings of its metrics."""

from collections import deque
from dataclasses import dataclass, fields

from inflight_client.load import Latency, Load, Reading, load

HISTORY_SECONDS = 300.0
RATE_SECONDS = 5.0
"""Rates cover so many seconds. In fewer, few requests end."""
LATENCY_SECONDS = 60.0
# After a longer time in which nobody watched, the figures of one step would be means over that time.
_LONGEST_GAP = 3.0
_SECONDS_BETWEEN_KEPT = 1.0


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
        """One reading for each of the last 60 seconds, the oldest first."""
        self._newest: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Add a reading whose time is that of its metrics. One with the time of the last one brings nothing new.

        Raises:
            KeyError: a metric is missing.
        """
        before = self._newest
        if before is not None and reading.seconds == before.seconds:
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
            self._points.append(
                _point(reading, load(before, reading), load(recent, reading), load(self._kept[0], reading))
            )
        if not self._kept or reading.seconds - self._kept[-1].seconds >= _SECONDS_BETWEEN_KEPT:
            self._kept.append(reading)

    def since(self, time: float) -> list[Point]:
        """Return the points after a time, in seconds since 1970."""
        return [point for point in self._points if point.time > time]


def columns(points: list[Point]) -> dict[str, list[float | None]]:
    """Return the points as one list for each figure, which is half as long as JSON."""
    return {
        field.name: [None if (value := getattr(point, field.name)) is None else round(value, 5) for point in points]
        for field in fields(Point)
    }


def _point(reading: Reading, step: Load, recent: Load, minute: Load) -> Point:
    first, inter = _quantiles(minute.first_token), _quantiles(minute.inter_token)
    return Point(
        time=reading.seconds,
        running=step.running,
        waiting=step.waiting,
        kv_cache_usage=step.blocks_used / step.blocks,
        prefill_tokens_per_step=step.prefill_tokens_per_step,
        decode_tokens_per_step=step.decode_tokens_per_step,
        prompt_tokens_per_second=recent.prompt_tokens_per_second,
        generated_tokens_per_second=recent.generated_tokens_per_second,
        finished_per_second=recent.finished_per_second,
        refused_per_second=recent.refused_per_second,
        prefix_hit_rate=minute.prefix_hit_rate,
        first_token_p50=first[0],
        first_token_p99=first[1],
        inter_token_p50=inter[0],
        inter_token_p99=inter[1],
    )


def _quantiles(latency: Latency) -> tuple[float | None, float | None]:
    return latency.p50, latency.p99
