"""Observes the model for all who watch the page."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from inflight_client import AsyncClient, InflightError, UnfinishedRequest
from inflight_client.load import DEFAULT_MAX_NUM_SEQS, Occupancy, Reading, occupancy
from inflight_client.metrics import MetricsSnapshot
from inflight_gateway.model_metrics import ModelMetrics
from inflight_gateway.ui.history import History

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.4
_UPDATED = "inflight:last_update_time_seconds"
MAX_LISTED = 100
"""The server lists so many requests, the oldest."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What runs and what waits at one moment."""

    max_num_seqs: int
    """How many requests the batches of all servers have room for."""
    now: Occupancy
    requests: Sequence[UnfinishedRequest]
    """The oldest first, at most `MAX_LISTED`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing was observed."""

    message: str


class Observer:
    """Asks the model at most every `INTERVAL_SECONDS`, however many ask this object, and not at all if nobody does."""

    def __init__(self, client: AsyncClient, model_metrics: ModelMetrics, model: str) -> None:
        """`model`: the name in Triton."""
        self._client = client
        self._model_metrics = model_metrics
        self._model = model
        self._lock = asyncio.Lock()
        self._max_num_seqs: int | None = None
        self._asked = -INTERVAL_SECONDS
        self._newest: Observation | Problem = Problem("the model was not asked yet")
        self.history = History()

    @property
    def next_due(self) -> float:
        """When what was found last will be too old, on the monotonic clock."""
        return self._asked + INTERVAL_SECONDS

    async def observe(self) -> Observation | Problem:
        """Return what was found last if it is fresh, and ask again otherwise."""
        async with self._lock:
            if time.monotonic() >= self.next_due:
                self._newest = await self._outcome()
                # Not before: a server that hangs takes seconds to fail, and all that wait meanwhile get one answer.
                self._asked = time.monotonic()
            return self._newest

    async def _outcome(self) -> Observation | Problem:
        try:
            return await self._observe()
        except InflightError as error:
            logger.debug("nothing observed: %s", error)
            return Problem("the model's server does not answer")
        except KeyError as error:
            return Problem(str(error.args[0]))

    async def _observe(self) -> Observation:
        if self._max_num_seqs is None:
            info = await self._client.model_info()
            self._max_num_seqs = int(info.parameters.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS))
        requests, metrics = await asyncio.gather(self._client.unfinished_requests(), self._model_metrics.snapshot())
        reading = self._reading(metrics)
        self.history.add(reading)
        servers = {sample.labels.get("server") for sample in metrics.select(_UPDATED, model=self._model)}
        return Observation(len(servers) * self._max_num_seqs, occupancy(reading), requests)

    def _reading(self, metrics: MetricsSnapshot) -> Reading:
        # A model that is loaded again may have its old version's metrics for a moment.
        times = [sample.value for sample in metrics.select(_UPDATED, model=self._model)]
        if not times:
            raise KeyError(f"the model has no metric {_UPDATED}")
        return Reading(max(times), metrics, self._model)
