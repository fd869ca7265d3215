"""An engine's core whose steps a test runs one by one."""

from inflight.core import EngineCore
from inflight.outputs import TokenEvent
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import make_scheduler
from tests.unit.fake_model import FakeModel


class Model(FakeModel):
    """Fails every step that has a request named in `poison`, and breaks off the next one if it `is_interrupted`."""

    def __init__(self) -> None:
        super().__init__(block_size=4)
        self.poison: set[str] = set()
        self.is_interrupted = False

    def run(self, plan: StepPlan):  # type: ignore[no-untyped-def]
        if self.is_interrupted:
            self.is_interrupted = False
            self.break_down(plan)
            raise KeyboardInterrupt
        if self.poison & {share.request.request_id for share in plan.scheduled}:
            raise RuntimeError("out of luck")
        return super().run(plan)


def make_core(
    scheduler: Scheduler | None = None, *, max_queue_size: int = 100, max_queue_tokens: int = 1000
) -> tuple[EngineCore, Model]:
    model = Model()
    core = EngineCore(
        scheduler or make_scheduler(), model, max_queue_size=max_queue_size, max_queue_tokens=max_queue_tokens
    )
    return core, model


def drain(core: EngineCore) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    for _ in range(1000):
        if not core.has_work:
            return events
        events += core.step()
    raise AssertionError("the core does not come to rest")


def ends(events: list[TokenEvent]) -> dict[str, str | None]:
    """Finish reasons by request id; no request may end twice."""
    finals = [(e.request.request_id, e.finish_reason) for e in events if e.finish_reason is not None]
    assert len(dict(finals)) == len(finals)
    return dict(finals)
