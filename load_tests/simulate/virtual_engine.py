"""An engine on a virtual clock: its own scheduler, and a model of its step times instead of the model."""

from collections.abc import Sequence

from inflight.arrivals import Arrivals, max_queue_tokens
from inflight.config import EngineConfig
from inflight.scheduler.committed import Committed
from inflight.scheduler.factory import make_tables
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.speculation.drafter import Drafter
from load_tests.simulate.acceptance import new_tokens
from load_tests.simulate.scripted_request import ScriptedRequest
from load_tests.simulate.step_cost import StepCost


class VirtualEngine:
    """The scheduler of an engine with these settings, and the step that is running. `drafter` makes its drafts.

    Raises:
        ValueError: `kv_cache_tokens` is not given, or `max_queue_tokens` is too low.
    """

    def __init__(self, config: EngineConfig, cost: StepCost, drafter: Drafter | None = None) -> None:
        self.scheduler = make_scheduler(config, cost, drafter)
        self.steps = 0
        self.step_seconds = 0.0
        """Total time of all steps."""
        self.padding = 0
        """Number of tokens of padding in all steps."""
        self._config = config
        self._cost = cost
        capacity = self.scheduler.tables.pool.num_blocks * config.block_size
        most = max_queue_tokens(config.max_queue_tokens, capacity, config.max_model_len or capacity)
        self._queue = Arrivals(self.scheduler, max_queue_size=config.max_queue_size, max_queue_tokens=most)
        self._running: tuple[StepPlan, float] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no step is running."""
        return self._running is None

    def accepts(self, request: ScriptedRequest) -> bool:
        """Prepare a request and return whether the queue has room for it.

        Raises:
            ValueError: the request could never run to its end, or is too long for the queue.
        """
        self.prepare(request)
        return self._queue.refusal([request]) is None

    def prepare(self, request: ScriptedRequest) -> None:
        """Give a request its level and the limits of its wait. Raise a ValueError if it could never run to its end."""
        self.scheduler.policies.apply(request)
        context, prompt, most = self._config.max_model_len, len(request.prompt_ids), request.max_tokens
        asked = f"a request has {prompt} prompt tokens and max_tokens {most}"
        if context is not None and prompt + most > context:
            raise ValueError(f"max_model_len is {context}; {asked}")
        if not self.scheduler.fits(request):
            raise ValueError(f"kv_cache_tokens is {self._config.kv_cache_tokens}; {asked}, more than fit")

    def begin(self, now: float) -> float | None:
        """Begin a step. Return the time of its end, or None if there is nothing to do or the step waits."""
        plan = self.scheduler.schedule(now)
        if not plan.scheduled:
            return None
        seconds = self._cost.seconds(plan)
        self._running = plan, seconds
        return now + seconds

    def end(self, now: float) -> Sequence[Committed]:
        """End the step. Return the requests that got tokens."""
        assert self._running is not None
        plan, seconds = self._running
        self._running = None
        self.steps += 1
        self.step_seconds += seconds
        self.padding += plan.padding
        self.scheduler.observe(plan, seconds)
        return self.scheduler.commit(plan, [new_tokens(each) for each in plan.sampling], now)


def make_scheduler(config: EngineConfig, cost: StepCost, drafter: Drafter | None = None) -> Scheduler:
    """The scheduler of an engine with these settings. `drafter` makes its drafts.

    Raises:
        ValueError: `kv_cache_tokens` is not given.
    """
    if config.kv_cache_tokens is None:
        raise ValueError("kv_cache_tokens is not given; without a model it follows from nothing")
    size = config.block_size
    tables = make_tables(config, config.kv_cache_tokens // size, config.swap_space_tokens // size)
    return Scheduler(
        config,
        tables,
        config.queue_policies,
        swap_seconds_per_block=cost.per_swapped_block,
        drafter=drafter,
    )
