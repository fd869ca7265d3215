"""A metric whose labels tell routers which LoRA adapters are in use, as vLLM's does."""

from collections.abc import Callable, Iterable
from typing import Any

from inflight.stats import EngineStats

# A label must fit into the messages between Triton and the model, however many adapters are waited for.
_MAX_NAMES = 100
# Triton 24.10 keeps some 170 bytes of every metric that was replaced.
_SECONDS_BETWEEN = 1.0


class LoraInfo:
    """Keeps one metric, and replaces it when its labels must change, at most once a second."""

    def __init__(self, make: Callable[[dict[str, str]], tuple[Any, Any]]) -> None:
        """`make` creates a family of its own with one metric, which has these labels, and returns both.

        Triton deletes metrics only with their family.
        """
        self._make = make
        self._labels: dict[str, str] = {}
        self._changed_at = 0.0
        self._kept: tuple[Any, ...] = ()

    def update(self, stats: EngineStats) -> None:
        """Show the adapters of running and of waiting requests.

        The value is the time of the change, since routers take the newest of several series. The new metric is there
        before the old one goes, so that a router always finds one.
        """
        labels = {
            "max_lora": str(stats.lora_most),
            "running_lora_adapters": _joined(stats.lora_running),
            "waiting_lora_adapters": _joined(stats.lora_wanted),
        }
        if labels == self._labels or stats.time < self._changed_at + _SECONDS_BETWEEN:
            return
        family, metric = self._make(labels)
        metric.set(stats.time)
        self._kept = (metric, family)
        self._labels, self._changed_at = labels, stats.time


def _joined(names: Iterable[str]) -> str:
    return ",".join(sorted(names)[:_MAX_NAMES])
