"""Several engines behind a router in virtual time: all alike, or prefill apart from decode."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from inflight.config import EngineConfig
from inflight.kv_cache.imported_blocks import ImportedBlocks
from load_tests.simulate.recorder import Recorder
from load_tests.simulate.result import Result
from load_tests.simulate.scripted_request import ScriptedRequest, scripted_request
from load_tests.simulate.step_cost import KV_BYTES_PER_TOKEN, StepCost
from load_tests.simulate.virtual_engine import VirtualEngine
from load_tests.traffic import Arrival


@dataclass(frozen=True)
class Network:
    """What carries keys and values between engines. Each engine has one connection, which sends one prompt at a
    time."""

    bytes_per_second: float
    kv_bytes_per_token: float = KV_BYTES_PER_TOKEN

    def seconds(self, tokens: int) -> float:
        """Time to send the keys and values of so many tokens."""
        return tokens * self.kv_bytes_per_token / self.bytes_per_second


def simulate_together(arrivals: Sequence[Arrival], config: EngineConfig, cost: StepCost, engines: int) -> Result:
    """Serve `arrivals` on engines that compute both prompts and outputs. Each request goes to the least loaded one.

    Raises:
        ValueError: the cache has no size, or a request could never fit into it.
    """
    return _Pools(arrivals, config, [_Member(config, cost) for _ in range(engines)]).run()


def simulate_apart(
    arrivals: Sequence[Arrival], config: EngineConfig, cost: StepCost, network: Network, *, prefill: int, decode: int
) -> Result:
    """Serve `arrivals` on `prefill` engines that compute prompts and `decode` engines that compute outputs.

    As in DistServe (OSDI'24), the prefill engine samples the first token and the user sees it then. Next the keys and
    values of the prompt go to the least loaded decode engine, where the request joins with its prompt computed. On its
    way it holds no blocks.

    Raises:
        ValueError: the cache has no size, or a request could never fit into it.
    """
    prefills, decodes = ([_Member(config, cost) for _ in range(count)] for count in (prefill, decode))
    return _Pools(arrivals, config, prefills, decodes, network).run()


class _Member:
    """An engine of a pool, and what the router knows of it."""

    def __init__(self, config: EngineConfig, cost: StepCost) -> None:
        self.engine = VirtualEngine(config, cost)
        self.num_requests = 0
        """Requests that wait, run or are on their way here."""
        self.sends_until = 0.0
        """When the engine's connection is free again."""
        self._new: dict[int, ScriptedRequest] = {}
        """Requests that got no token from this engine yet."""

    @property
    def load(self) -> tuple[int, int]:
        """Prompt tokens that wait, and requests. Only if the first are equal do the second count."""
        waiting = [len(each.prompt_ids) - _num_known(each) for each in self._new.values()]
        return sum(waiting), self.num_requests

    def add(self, request: ScriptedRequest) -> None:
        self.engine.scheduler.add(request)
        self._new[request.index] = request

    def answered(self, request: ScriptedRequest, *, ended: bool) -> None:
        self._new.pop(request.index, None)
        self.num_requests -= ended


def _num_known(request: ScriptedRequest) -> int:
    """How many tokens of a request need not be computed any more."""
    return max(request.num_computed, 0 if request.imported is None else request.imported.num_tokens)


class _Pools:
    """Requests arrive at the members of `entry`. If there are others in `decodes`, they go on there."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        config: EngineConfig,
        entry: Sequence[_Member],
        decodes: Sequence[_Member] = (),
        network: Network | None = None,
    ) -> None:
        self._arrivals = arrivals
        self._entry, self._decodes = entry, decodes
        self._network = network
        self._block_size = config.block_size
        self._distinct = config.enable_prefix_caching or config.length_predictor != "tenant"
        self._recorder = Recorder(arrivals)
        self._now = 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        """What happens when, as a heap. Events of one moment happen in the order in which they were planned."""

    def run(self) -> Result:
        members = [*self._entry, *self._decodes]
        for index, arrival in enumerate(self._arrivals):
            self._at(arrival.at, partial(self._arrive, index))
        while self._events:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                heapq.heappop(self._events)[2]()
            for member in members:
                self._begin(member)
        engines = [member.engine for member in members]
        return self._recorder.result(
            steps=sum(engine.steps for engine in engines),
            step_seconds=sum(engine.step_seconds for engine in engines),
            padding_tokens=sum(engine.padding for engine in engines),
            swaps=sum(engine.scheduler.preemptor.num_swaps for engine in engines),
            tenants={},
        )

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), action))

    def _arrive(self, index: int) -> None:
        member = min(self._entry, key=lambda each: each.load)
        arrival = self._arrivals[index]
        if self._decodes:
            arrival = replace(arrival, output_tokens=1, max_tokens=1)
        request = scripted_request(arrival, index, 0.0, distinct=self._distinct)
        if not member.engine.accepts(request):
            self._recorder.refused()
            return
        self._recorder.arrived(request)
        member.num_requests += 1
        member.add(request)

    def _begin(self, member: _Member) -> None:
        """Begin a step if the engine is idle and has something to do."""
        scheduler = member.engine.scheduler
        if not member.engine.is_idle or not (scheduler.running or len(scheduler.waiting)):
            return
        for request, _, _ in scheduler.expire(self._now):
            assert isinstance(request, ScriptedRequest)
            member.answered(request, ended=True)
            self._recorder.expired(request)
        end = member.engine.begin(self._now)
        if end is not None:
            self._at(end, partial(self._end, member))
        elif scheduler.wakes_at is not None:
            self._at(max(self._now, scheduler.wakes_at), lambda: None)

    def _end(self, member: _Member) -> None:
        outcomes = member.engine.end(self._now)
        self._recorder.tokens([(outcome.request, len(outcome.token_ids)) for outcome in outcomes], self._now)
        for outcome in outcomes:
            request, ended = outcome.request, outcome.finish_reason is not None
            assert isinstance(request, ScriptedRequest)
            member.answered(request, ended=ended)
            if ended and self._network and member in self._entry and self._arrivals[request.index].output_tokens > 1:
                self._send(request.index, member, self._network)
            elif ended:
                self._recorder.finished(request, self._now)

    def _send(self, index: int, source: _Member, network: Network) -> None:
        """Send what a prefill engine computed to a decode engine."""
        target = min(self._decodes, key=lambda each: each.load)
        target.num_requests += 1
        begin = max(self._now, source.sends_until, target.sends_until)
        end = begin + network.seconds(self._arrivals[index].prompt_tokens)
        source.sends_until = target.sends_until = end
        self._at(end, partial(self._join, index, target))

    def _join(self, index: int, member: _Member) -> None:
        """Queue a request whose prompt and first token are known, and whose prompt is computed."""
        whole = self._arrivals[index]
        rest = replace(
            whole,
            at=self._now,
            prompt_tokens=whole.prompt_tokens + 1,
            output_tokens=whole.output_tokens - 1,
            max_tokens=whole.max_tokens - 1,
        )
        request = scripted_request(rest, index, 0.0, distinct=self._distinct)
        blocks = -(-whole.prompt_tokens // self._block_size)
        request.imported = ImportedBlocks(whole.prompt_tokens, np.zeros((blocks, 1), np.uint8))
        member.engine.prepare(request)
        member.add(request)
