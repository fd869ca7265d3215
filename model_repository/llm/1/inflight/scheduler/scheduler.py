"""Plans steps within a token budget and the KV cache. Requests join and leave between steps.

By default, decodes come first and chunks of prompts fill the rest of the budget (Sarathi-Serve, OSDI'24), so that a
long prompt never stops the tokens of other requests. Separate classes decide which request is next, which requests the
cache has room for, when a batch forms and how many prompt tokens a step may have.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import DEADLINE, EXPIRED, SHED, Preemption, Request
from inflight.scheduler import factory
from inflight.scheduler.auto_tune.auto_tuner import AutoTuner
from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.auto_tune.load import Load
from inflight.scheduler.committed import Committed
from inflight.scheduler.committer import Committer
from inflight.scheduler.decode_turns import in_turn
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.policies.policy import LeftoverPolicy, SchedulingPolicy
from inflight.scheduler.prefill_budget import Decodes, PrefillAllowance
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.row_times import RowTimes
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.step_limit import StepLimit
from inflight.scheduler.step_time import StepTimeModel
from inflight.scheduler.timers import Timers
from inflight.scheduler.waiting_queue import WaitingQueue
from inflight.speculation.drafter import Drafter
from inflight.step_result import StepResult
from inflight.tenant_costs import TenantCosts

# Maximum number of tokens in a step that grammars force in addition to the sampled ones. They make the step longer.
_MAX_FORCED = 256


class Scheduler:
    """The running set and the waiting queue.

    Every request that passes `fits` finishes. No policy lets other requests overtake a request forever, except strict
    priority levels, which the user must ask for. And the first running request in rank is never preempted for another.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        tables: BlockTables,
        policies: QueuePolicies | None = None,
        *,
        swap_seconds_per_block: float = 0.0,
        row_times: RowTimes | None = None,
        drafter: Drafter | None = None,
        make_queue: Callable[[QueuePolicies, SchedulingPolicy], WaitingQueue] = WaitingQueue,
    ) -> None:
        """
        Args:
            swap_seconds_per_block: the time to copy a block between the cache and host memory in one direction.
            row_times: measured times of steps, for the step-time model.
            drafter: makes the drafts in place of the drafter that `speculative_config` names.

        Raises:
            ValueError: a setting does not work with the priority levels.
        """
        self.config = config
        self.tables = tables
        self.policies = policies or QueuePolicies()
        factory.check_levels(config, self.policies.priority_levels)
        self.times = StepTimeModel(row_times)
        self.lengths = factory.make_lengths(config)
        self.policy = factory.make_policy(config, tables, self.times, self.lengths)
        self.waiting = make_queue(self.policies, self.policy)
        self.running: dict[str, Request] = {}
        """In order of admission."""
        self._admission = factory.make_admission(config, tables, self.lengths)
        self._batching = factory.make_batching(config, self.waiting, self.running)
        self._budget = factory.make_budget(config, self.times)
        self.tuner = factory.make_tuner(config, self.times)
        """None unless `auto_tune` is on."""
        self.costs = TenantCosts() if config.price_per_hour else None
        self._waits_until: float | None = None
        """Until when the next step waits for a fuller batch, if it does."""
        self._limit = StepLimit(config.max_num_batched_tokens)
        self._max_chunk = (self._batching.mixes and config.long_prefill_token_threshold) or sys.maxsize
        self._longest_chunk = self._max_chunk
        """Maximum number of tokens of one prompt in the step that is being planned."""
        self._max_partial = config.max_num_partial_prefills or sys.maxsize
        self._speculator = factory.make_speculator(config, tables, self.times, drafter)
        self._committer = Committer(
            tables, self.policy, self.lengths, self._speculator, self.running, remove=self.remove, preempt=self._preempt
        )
        self._swap_seconds_per_block = swap_seconds_per_block
        self._deadlines = Timers()
        self._preempted: list[Request] = []
        """Requests preempted in the step that is being planned."""
        self._now = 0.0
        """The time of the newest `schedule` or `commit`."""
        self._lacks_room = False
        """Whether a request could not join the last step because running requests held the slots or the blocks."""
        self.num_preemptions = 0
        self.num_swaps = 0
        """Number of preemptions by swapping."""

    @property
    def token_budget(self) -> int:
        """Maximum number of tokens in the next step."""
        return self._limit.tokens if self.tuner is None else min(self._limit.tokens, self.tuner.token_budget)

    @property
    def _max_running(self) -> int:
        # If more sequences ran than the budget has tokens, one step could not advance them all.
        return min(self.config.max_num_seqs if self.tuner is None else self.tuner.max_num_seqs, self.token_budget)

    @property
    def wakes_at(self) -> float | None:
        """After an empty plan: when to call `expire` and plan again even if nothing arrives."""
        wakes_at = self._batching.wakes_at if self._waits_until is None else self._waits_until
        if wakes_at is None:
            return None
        return min(wakes_at, self._deadlines.next_due, self.waiting.next_due)

    def fits(self, request: Request) -> bool:
        """Return whether the request could run to its end if it had the whole cache."""
        return self.tables.most_blocks(request) <= self.tables.pool.num_blocks

    # -- requests come and go ----------------------------------------------------------------------------------------

    def prepare(self, request: Request) -> None:
        """Compute in advance what takes long in `add`: the names of the blocks, if the policy ranks by them."""
        if self.policy.ranks_by_prefix:
            self.tables.lookup(request)

    def read_prompt(self, request: Request) -> None:
        """Compute in advance what the length predictor wants to know of the prompt. Any thread may call this."""
        self.lengths.prepare(request)

    def add(self, request: Request) -> None:
        """Queue a request that `fits`."""
        self.lengths.arrived(request)
        self._admission.arrived(request)
        self.waiting.add(request)
        if request.deadline is not None:
            self._deadlines.set(request, request.deadline)

    def remove(self, request_id: str) -> Request | None:
        """Remove a waiting or running request and free its blocks. Return None if there is no such request.

        Never call this between `schedule` and `commit` of a step.
        """
        request = self.waiting.remove(request_id) or self.running.get(request_id)
        if request is not None:
            self._deadlines.clear(request_id)
            self._stop(request)
        return request

    def _stop(self, request: Request) -> None:
        """Free the blocks of a request and of its beams, which run no longer."""
        for each in request.members:
            self.running.pop(each.request_id, None)
            self.tables.release(each)
            self._speculator.forget(each)

    def expire(self, now: float) -> list[tuple[Request, str, str | None]]:
        """Remove the requests whose time limit has passed, and apply the queue's `timeout_action`.

        Return each removed request with its finish reason: `deadline` if it has run, else a message and `expired`, or
        `shed` if its own limits would have let it wait longer.
        Never call this between `schedule` and `commit` of a step.
        """
        ended: list[tuple[Request, str, str | None]] = []
        for request, message in self.waiting.expire(now):
            self._deadlines.clear(request.request_id)
            self._stop(request)  # If it has run, it may have blocks in host memory.
            is_over = request.deadline is not None and request.deadline <= now
            ended.append((request, EXPIRED if is_over else SHED, message))
        for request in self._deadlines.due(now):
            assert request.deadline is not None
            bound = round((request.deadline - request.arrival) * 1e3)
            has_run = request.request_id in self.running or request.num_preemptions > 0
            late = None if has_run else f"deadline_ms is {bound}; it passed while the request waited"
            ended.append((request, DEADLINE if has_run else EXPIRED, late))
            self.remove(request.request_id)
        return ended

    # -- planning ----------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step. An empty plan means that no request runs and no waiting request may join yet, or that the
        step waits for a fuller batch."""
        self._now = now
        self._preempted = []
        changes = () if self.tuner is None else self._tune(self.tuner, now)
        if self._waits_until is not None:
            return StepPlan((), changes=changes)
        self.tables.host.settle()
        self._batching.begin_step(now)
        self._admission.begin_step(now)
        self._move_beams()
        self._make_room()
        self._preempt_for_next(now)
        limited = self.policy.shares(self.running.values())
        scheduled = self._decodes(leftover=False) if self._batching.mixes else []
        if limited and not self._lacks_room:
            # While others wait for the room that a limited tenant holds, it would only hold it for longer.
            scheduled = in_turn(scheduled, limited)
        allowance = self._allowance(scheduled, limited, now)
        prompts = self._prompts(allowance, now, limited)
        if limited and not scheduled and not prompts:
            allowance.lift_credits()  # Nobody else can use the step.
            prompts = self._prompts(allowance, now, limited)
        scheduled += prompts
        num_decodes = 0
        if not scheduled and self.running and not self._batching.mixes:
            scheduled = self._decodes(leftover=False)
            num_decodes = len(scheduled)
            allowance = PrefillAllowance(self.token_budget - sum([each.num_tokens for each in scheduled]))
        padding = self._batching.padding(num_decodes)
        scheduled = self._speculator.with_drafts(scheduled, allowance)
        if self.policy.leftover is not None:
            scheduled += self._leftover(self.policy.leftover, scheduled, prompts, allowance, now)
        out, forked, into = self.tables.take_copies()
        ends = [each.first + len(each.token_ids) for each in scheduled]
        return StepPlan(
            tuple(scheduled),
            self.tables.gather([each.request for each in scheduled], ends),
            preempted=tuple(self._preempted),
            swapped_out=out,
            forked=forked,
            swapped_in=into,
            imported=self.tables.take_imported(),
            padding=padding,
            prefill_budget=allowance.budget,
            shows_states=self.lengths.reads_states,
            changes=changes,
        )

    def _tune(self, tuner: AutoTuner, now: float) -> tuple[Change, ...]:
        load = Load(self.running, self.waiting.first(), len(self.waiting), self.waiting.num_tokens)
        changes = tuner.tune(now, load, self.num_preemptions)
        self._budget.target = tuner.step_seconds
        self._admission.next_tokens = tuner.watermark
        self._waits_until = None
        if min(self._deadlines.next_due, self.waiting.next_due) == math.inf:
            # A request with a limit of its own has no time to wait.
            self._waits_until = tuner.waits_until(now, load)
        return changes

    def _decodes(self, *, leftover: bool) -> list[ScheduledRequest]:
        spare = min(max(0, self.token_budget - len(self.running)), _MAX_FORCED)
        return ScheduledRequest.decodes_of(self._ranked(leftover=leftover), spare)

    def _allowance(
        self, decodes: Sequence[ScheduledRequest], limited: Mapping[str, float], now: float
    ) -> PrefillAllowance:
        """Return what prompts may take of a step beside its decodes."""
        running = [request for request in self.running.values() if not request.is_leftover]
        present = len(self.waiting) - self.waiting.num_leftover + len(running)
        known = self.waiting.num_tokens - self.waiting.num_leftover_tokens
        known += sum([len(request.token_ids) for request in running])
        if present > self._max_running:
            known, present = known * self._max_running // present, self._max_running
        tokens = sum([len(decode.token_ids) for decode in decodes])
        left = self.token_budget - tokens
        if self.policy.leftover is not None:
            left -= min(self._reserved(self.policy.leftover, now), left // 2)
        return self._budget.for_prompts(
            left,
            Decodes(tokens, sum([decode.first for decode in decodes])),
            Decodes(present, known),
            limited,
        )

    def _ranked(self, *, leftover: bool | None = None) -> list[Request]:
        """Return the running requests by rank, then in order of admission; with `leftover`, only those that are."""
        running = list(self.running.values())
        if self.policy.leftover is not None and leftover is not None:
            running = [request for request in running if request.is_leftover == leftover]
        elif self.policy.leftover is not None or self.policy.ranks_running or self.policies.priority_levels:
            running.sort(key=self.policy.rank)
        return running

    def _prompts(self, allowance: PrefillAllowance, now: float, limited: Collection[str]) -> list[ScheduledRequest]:
        """Schedule running prompts and new requests. Prompts of limited tenants, and those that the first new request
        outranks, come last."""
        going = self._unfinished(leftover=False)
        self._longest_chunk = self._max_chunk
        if self.tuner is not None and self._batching.mixes:
            self._longest_chunk = min(self._max_chunk, self.tuner.max_chunk(allowance.budget.tokens, len(going)))
        newcomer = self._batching.next(now) if self.policy.preempts and going else None
        later = [
            request
            for request in going
            if request.tenant in limited or (newcomer is not None and self._outranks(newcomer, request))
        ]
        chunks = self._chunks([request for request in going if request not in later], allowance)
        partial = len(going) - sum([chunk.is_final_chunk for chunk in chunks])
        chunks += self._admit(allowance, partial, now, chunks)
        return chunks if chunks and not self._batching.mixes else chunks + self._chunks(later, allowance)

    def _unfinished(self, *, leftover: bool) -> list[Request]:
        """Return the running requests that have prompts to compute, or tokens to compute again."""
        return [
            request
            for request in self._ranked(leftover=leftover)
            if len(request.token_ids) - request.num_computed > 1 and not request.decodes
        ]

    def _reserved(self, policy: LeftoverPolicy, now: float) -> int:
        """Return how many tokens of a step leftover requests have before the prompts of others."""
        leftover = self._ranked(leftover=True)
        request = self._batching.next(now)
        if request is not None and request.is_leftover:
            leftover.append(request)
        return policy.reserved(leftover)

    def _leftover(
        self,
        policy: LeftoverPolicy,
        others: Sequence[ScheduledRequest],
        prompts: Sequence[ScheduledRequest],
        allowance: PrefillAllowance,
        now: float,
    ) -> list[ScheduledRequest]:
        """Schedule leftover requests beside the others of a step, whose `allowance` the tokens are taken from.

        `prompts` are those of the others that are not decodes. Decodes come first, by turn.
        """
        room = policy.allowance(others, self.token_budget - sum([each.num_tokens for each in others]))
        decodes = []
        for each in sorted(self._decodes(leftover=True), key=lambda decode: policy.turn(decode.request)):
            if room.take_whole(each.first, each.num_tokens):
                decodes.append(each)
        going = sorted(self._unfinished(leftover=True), key=policy.turn)
        chunks = self._chunks(going, room)
        partial = len(going) - sum([chunk.is_final_chunk for chunk in chunks])
        chunks += self._admit(room, partial, now, [*prompts, *chunks], leftover=True)
        allowance.take(0, sum([each.num_tokens for each in (*decodes, *chunks)]))
        return decodes + chunks if others else self._speculator.with_drafts(decodes + chunks, room)

    def _chunks(self, requests: Sequence[Request], allowance: PrefillAllowance) -> list[ScheduledRequest]:
        chunks: list[ScheduledRequest] = []
        for request in requests:
            fits = allowance.fits(request.num_computed, request.num_uncomputed, request.tenant)
            if not fits and allowance.fits(request.num_computed, 1):
                continue  # Its tenant has had its share of the step.
            if not fits or (chunks and not self._batching.mixes and fits < request.num_uncomputed):
                break  # Without chunked prefill, a prompt that is longer than any step gets steps of its own.
            chunks.append(self._chunk(request, allowance))
        return chunks

    def _chunk(self, request: Request, allowance: PrefillAllowance) -> ScheduledRequest:
        first = request.num_computed
        tokens = allowance.fits(first, min(self._longest_chunk, request.num_uncomputed), request.tenant)
        allowance.take(first, tokens, request.tenant)
        return ScheduledRequest.next_of(request, tokens)

    def _admit(
        self,
        allowance: PrefillAllowance,
        partial: int,
        now: float,
        chunks: Sequence[ScheduledRequest],
        *,
        leftover: bool = False,
    ) -> list[ScheduledRequest]:
        admitted: list[ScheduledRequest] = []
        self._lacks_room = False
        filling = {name for c in chunks for name in self.tables.hashes_filled_by(c.request, c.num_tokens)}
        while allowance.fits(0, 1) and (request := self._batching.next(now)):
            if request.is_leftover != leftover:
                break
            if self.policy.leftover is not None and not leftover:
                self._preempt_for(request)
            if len(self.running) >= self._max_running:
                break
            if self._preempted and not self._preempted_for(request):
                self._lacks_room = True
                break  # The free blocks are for running requests.
            if self.running and len(self.running) + request.num_sequences > self._max_running:
                self._lacks_room = True
                break
            hit = self.tables.lookup(request)
            if self.tables.next_hash(request, hit) in filling:
                # Another request computes this block in this step. After the step, the request can share the block.
                self.waiting.hold(request)
                continue
            if not self._admission.allows(request, hit, self.running):
                self._lacks_room = True
                break
            if not self._suits(request, hit, allowance, partial, bool(chunks or admitted)):
                break
            self._join(request, hit, now)
            admitted.append(self._chunk(request, allowance))
            partial += not admitted[-1].is_final_chunk
            filling.update(self.tables.hashes_filled_by(request, admitted[-1].num_tokens))
        self._lacks_room |= len(self.running) >= self._max_running and len(self.waiting) > 0
        self.waiting.release_held()
        return admitted

    def _suits(
        self, request: Request, hit: Sequence[int], allowance: PrefillAllowance, partial: int, has_others: bool
    ) -> bool:
        """Return whether the prompt of a new request fits into the rest of the step, or may be cut."""
        known = self.tables.num_known(request, hit)
        uncomputed = len(request.token_ids) - known
        fits = allowance.fits(known, min(uncomputed, self._longest_chunk), request.tenant)
        if not self._batching.mixes:
            # A prompt that is longer than any step gets steps of its own.
            return fits == uncomputed or not has_others
        return fits == uncomputed or (fits > 0 and partial < self._max_partial)

    def _join(self, request: Request, hit: Sequence[int], now: float) -> None:
        first_time = request.num_preemptions == 0
        self.waiting.remove(request.request_id)
        self.tables.admit(request, hit)
        self.running[request.request_id] = request
        if request.beams is not None:
            self.running.update((beam.request_id, beam) for beam in request.beams.join())
        if first_time:
            request.num_cached = request.num_computed
            request.first_step_at = now
        else:
            request.preemptions[-1].resumed_at = now
        self.policy.admitted(request)
        self._batching.joined(request)

    # -- preemption --------------------------------------------------------------------------------------------------

    def _move_beams(self) -> None:
        """Give the next beams of each search their blocks. When blocks run out, preempt the last in rank."""
        for group in self._committer.moving:
            while self._runs(group.leader) and not self.tables.fork(group.moves):
                self._preempt(self._ranked()[-1])
            group.moved()
        self._committer.moving.clear()

    def _runs(self, request: Request) -> bool:
        return self.running.get(request.request_id) is request

    def _make_room(self) -> None:
        """Give running requests blocks for all their tokens. When blocks run out, preempt the last in rank."""
        for request in self.tables.outgrown(self._ranked()):
            while request.request_id in self.running and not self.tables.grow(request):
                self._preempt(self._ranked()[-1])

    def _preempt_for_next(self, now: float) -> None:
        """Preempt running requests that the next waiting request outranks, until it can join."""
        request = self._batching.next(now) if self.policy.preempts else None
        if request is not None:
            self._preempt_for(request)

    def _preempt_for(self, request: Request) -> None:
        """Preempt running requests that a waiting one outranks, until it can join."""
        if not self._admission.preempts or self.waiting.is_delayed(request) or self._has_room(request):
            return
        lower = self.policy.victims(request, self._ranked())
        while lower and not self._has_room(request):
            if self._runs(victim := lower.pop()):  # Beams go with their leader.
                self._preempt(victim)

    def _has_room(self, request: Request) -> bool:
        hit = self.tables.lookup(request)
        has_slots = len(self.running) + request.num_sequences <= self._max_running
        return has_slots and self._admission.allows(request, hit, self.running)

    def _outranks(self, request: Request, other: Request) -> bool:
        """Return whether a waiting request may take the room of another one.

        A request that its timeout has delayed may not: a request preempted for it would be queued before it.
        """
        return self.policy.outranks(request, other) and not self.waiting.is_delayed(request)

    def _preempted_for(self, request: Request) -> bool:
        if not (self.policy.preempts or self.policy.leftover is not None) or request in self._preempted:
            return False
        return any(self._outranks(request, victim) for victim in self._preempted)

    def _preempt(self, request: Request, *, swap: bool = True) -> None:
        """Free a request's blocks and queue it again. It keeps its tokens, but a beam search begins again."""
        request = request.leader
        if request.beams is not None:
            self._stop(request)
            request.beams.restart()
        else:
            del self.running[request.request_id]
            if swap and self._swaps(request) and self.tables.swap_out(request):
                self.num_swaps += 1
            else:
                self.tables.release(request)
        request.preemptions.append(Preemption(self._now))
        self.num_preemptions += 1
        self._preempted.append(request)
        self.waiting.put_back(request)

    def _swaps(self, request: Request) -> bool:
        """Return whether to copy a request's keys and values to host memory instead of computing them again."""
        if self.config.preemption_mode != "auto":
            return self.config.preemption_mode == "swap"
        copy_seconds = 2 * len(request.blocks) * self._swap_seconds_per_block
        return copy_seconds < self.times.prefill_seconds(request.num_computed)

    # -- after the step ----------------------------------------------------------------------------------------------

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from the duration of a step. Call this before `commit`."""
        self.times.observe(plan.num_tokens, plan.num_cached, plan.num_pairs, seconds)
        self._batching.observe(plan, seconds)
        self._limit.step_ran()
        if self.costs is not None:
            self.costs.charge(plan, self.times.coefficients, seconds)

    def fail_step(self, plan: StepPlan) -> list[Request]:
        """Remove the requests of a step that failed. What the step should have copied out is computed again."""
        for request in plan.preempted:
            self.tables.forget_swapped(request)
        self.tables.host.forget_arriving()
        return [s.request.leader for s in plan.scheduled if self.remove(s.request.leader.request_id)]

    def shrink_after_oom(self, plan: StepPlan) -> bool:
        """After a step for which the device had too little memory, limit the next steps to half as many tokens.

        If more requests run than the new limit allows, the last in rank are preempted. Everything else stays as it was
        before the step, whose block copies have been made. Return False and do nothing if the step cannot be halved.
        """
        for each in plan.scheduled:
            self.tables.trim(each.request)
        if plan.num_tokens <= max(Counter(s.request.leader for s in plan.scheduled).values()):
            return False  # One token, or one of each beam of a search.
        self._limit.shrink(plan.num_tokens)
        for request in reversed(self._ranked()[self._max_running :]):
            if self._runs(request) and request.leader is not self._ranked()[0].leader:
                self._preempt(request, swap=False)
        return True

    def commit(self, plan: StepPlan, results: Sequence[StepResult], now: float) -> list[Committed]:
        """Account for a step that ran; see `Committer.commit`."""
        self._now = now
        committed = self._committer.commit(plan, results, now)
        if self.tuner is not None:
            self.tuner.committed(committed, now)
        if self.costs is not None:
            self.costs.committed(committed)
        return committed

    def completed(self, request: Request) -> None:
        """Learn from a request whose output is complete."""
        self._committer.completed(request)
