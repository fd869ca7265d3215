"""Logs every ten seconds what the engine is doing."""

import logging
import time

from inflight import Engine
from inflight.stats import EngineStats

logger = logging.getLogger(__name__)

_PERIOD_SECONDS = 10.0


class ProgressLog:
    """Logs the throughput and the step time of the last period, if it had any steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._since = time.monotonic()
        self._before = engine.stats()

    def tick(self) -> None:
        """Log a line if a period is over."""
        if time.monotonic() - self._since >= _PERIOD_SECONDS:
            self.close()

    def close(self) -> None:
        """Log a line about the time since the last one."""
        now, stats, before = time.monotonic(), self._engine.stats(), self._before
        steps = stats.steps - before.steps
        if steps:
            logger.info(
                "%.0f tokens/s out, %.0f tokens/s computed, %.1f ms a step (%d steps); "
                "running %d, waiting %d, blocks %d of %d, preempted %d%s",
                (stats.generated_tokens - before.generated_tokens) / (now - self._since),
                (stats.computed_tokens - before.computed_tokens) / (now - self._since),
                (stats.step_seconds - before.step_seconds) / steps * 1000,
                steps,
                stats.running,
                stats.waiting,
                stats.blocks_used,
                stats.blocks_total,
                stats.preemptions - before.preemptions,
                _drafts(before, stats),
            )
        self._since, self._before = now, stats


def _drafts(before: EngineStats, stats: EngineStats) -> str:
    """What became of the drafts in between, as the end of a line; empty if there were none."""
    drafted = stats.draft_tokens - before.draft_tokens
    accepted = stats.accepted_draft_tokens - before.accepted_draft_tokens
    return f", drafted {drafted} tokens, {accepted / drafted:.0%} right" if drafted else ""
