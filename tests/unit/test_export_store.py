"""The store of exports against a naive one: never over its bound, nothing lost, nothing given to the wrong one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight.kv_transfer.export_store import EXPIRED, FETCHED, FULL, RELEASED, Export, ExportStore, Refused

MOST, SECONDS = 10_000, 10.0


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = ExportStore(MOST, SECONDS, lambda: self.now)
        self.live: dict[str, tuple[Export, float]] = {}
        """Exports, and when each was made."""
        self.gone: list[str] = []
        self.outcomes = {FETCHED: 0, RELEASED: 0, EXPIRED: 0, FULL: 0}

    @rule(size=st.integers(1, 6000), digest=st.sampled_from("xy"))
    def add(self, size: int, digest: str) -> None:
        self._forget_late()
        fits = sum(export.num_bytes for export, _ in self.live.values()) + size <= MOST
        export = self.store.add(digest, 1, size)
        assert (export is not None) == fits
        if export is None:
            self.outcomes[FULL] += 1
        else:
            assert export.handle not in self.live
            assert len(export.data) == export.num_bytes == size
            self.live[export.handle] = export, self.now

    @precondition(lambda self: self.live)
    @rule(data=st.data(), digest=st.sampled_from("xy"))
    def find(self, data: st.DataObject, digest: str) -> None:
        handle = self._any(data)
        self._forget_late()
        export, _ = self.live.get(handle, (None, 0))
        if export is None:
            with pytest.raises(Refused, match="unknown"):
                self.store.find(handle, digest)
        elif export.digest != digest:
            with pytest.raises(Refused, match="prompt"):
                self.store.find(handle, digest)
        else:
            assert self.store.find(handle, digest) is export

    @precondition(lambda self: self.live)
    @rule(data=st.data(), outcome=st.sampled_from([FETCHED, RELEASED]))
    def drop(self, data: st.DataObject, outcome: str) -> None:
        handle = self._any(data)
        self.store.drop(handle, outcome)
        self.outcomes[outcome] += 1
        del self.live[handle]
        self.gone.append(handle)

    @precondition(lambda self: self.gone)
    @rule()
    def drop_again(self) -> None:
        self.store.drop(self.gone[-1], FETCHED)

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        self._forget_late()
        self.store.expire()

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.outcomes[RELEASED] += len(self.live)
        self.gone += self.live
        self.live.clear()

    def _any(self, data: st.DataObject) -> str:
        # Handles are random, and what is drawn must not be.
        return list(self.live)[data.draw(st.integers(0, len(self.live) - 1))]

    def _forget_late(self) -> None:
        late = [handle for handle, (_, made) in self.live.items() if made + SECONDS <= self.now]
        for handle in late:
            del self.live[handle]
            self.gone.append(handle)
            self.outcomes[EXPIRED] += 1

    @invariant()
    def counts(self) -> None:
        late = [export.num_bytes for export, made in self.live.values() if made + SECONDS <= self.now]
        held = sum(export.num_bytes for export, _ in self.live.values())
        # What is late is freed when somebody next uses the store.
        assert self.store.num_bytes in (held, held - sum(late))
        assert self.store.num_bytes <= MOST
        assert {name: self.store.outcomes[name] for name in self.outcomes} == self.outcomes or late


TestExportStore = Machine.TestCase
TestExportStore.settings = settings(settings.get_profile("unit"), max_examples=50, stateful_step_count=25)
