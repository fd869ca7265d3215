"""Plans steps within a token budget and the KV cache. Requests join and leave between steps.

By default, decodes come first and chunks of prompts fill the rest of the budget (Sarathi-Serve, OSDI'24), so that a
long prompt never stops the tokens of other requests.

`Scheduler` says in which order a step is planned. Who is preempted is in `preemptor.py`, who joins in `admitter.py`,
how prompts are cut in `prompt_chunks.py`, what leftover requests get in `leftover_work.py`, and what a failed step
leaves behind in `failed_steps.py`. Exchangeable classes decide which request is next, which requests the cache has room
for, when a batch forms and how many prompt tokens a step may have; `factory.py` creates them.
"""

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import DEADLINE, EXPIRED, SHED, Request
from inflight.scheduler import factory
from inflight.scheduler.admitter import Admitter
from inflight.scheduler.auto_tune.auto_tuner import AutoTuner
from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.auto_tune.load import Load
from inflight.scheduler.committed import Committed
from inflight.scheduler.committer import Committer
from inflight.scheduler.decode_turns import in_turn
from inflight.scheduler.failed_steps import FailedSteps
from inflight.scheduler.leftover_work import LeftoverWork
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.preemptor import Preemptor
from inflight.scheduler.prefill_budget import Decodes, PrefillAllowance, PrefillBudget
from inflight.scheduler.prompt_chunks import ChunkLimits, PromptChunks
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.row_times import RowTimes
from inflight.scheduler.running_set import RunningSet
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.step_limit import StepLimit
from inflight.scheduler.step_time import StepTimeModel
from inflight.scheduler.timers import Timers
from inflight.scheduler.waiting_queue import WaitingQueue
from inflight.speculation.drafter import Drafter
from inflight.step_result import StepResult
from inflight.tenant_costs import TenantCosts


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
        num_logits: int = sys.maxsize,
        make_queue: Callable[[QueuePolicies, SchedulingPolicy], WaitingQueue] = WaitingQueue,
    ) -> None:
        """
        Args:
            swap_seconds_per_block: the time to copy a block between the cache and host memory in one direction.
            row_times: measured times of steps, from which the cost of drafted tokens follows.
            drafter: makes the drafts in place of the drafter that `speculative_config` names.
            num_logits: only tokens below this number are drafted.

        Raises:
            ValueError: a setting does not work with the priority levels.
        """
        self.config = config
        self.tables = tables
        self.policies = policies or QueuePolicies()
        factory.check_levels(config, self.policies.priority_levels)
        self.limit = StepLimit(config.max_num_batched_tokens, config.max_num_seqs)
        self.times = StepTimeModel()
        self.lengths = factory.make_lengths(config)
        self.policy = factory.make_policy(config, tables, self.times, self.lengths)
        self._speculator = factory.make_speculator(config, tables, row_times, drafter, num_logits)
        self.waiting = make_queue(self.policies, self.policy)
        self.running = RunningSet(
            tables, self.policy, self.limit, self._speculator, has_levels=self.policies.priority_levels > 0
        )
        self._admission = factory.make_admission(config, tables, self.lengths)
        self._batching = factory.make_batching(config, self.waiting, self.running)
        self._budget = factory.make_budget(config, self.times)
        self._chunk_limits = ChunkLimits(
            mixes=self._batching.mixes,
            longest=(self._batching.mixes and config.long_prefill_token_threshold) or sys.maxsize,
            max_partial=config.max_num_partial_prefills or sys.maxsize,
        )
        self.preemptor = Preemptor(
            config,
            tables,
            self.times,
            self.policy,
            self._admission,
            self.waiting,
            self.running,
            swap_seconds_per_block=swap_seconds_per_block,
        )
        self._admitter = Admitter(
            tables, self.policy, self._batching, self._admission, self.waiting, self.running, self.preemptor
        )
        self._leftover = None
        if self.policy.leftover is not None:
            self._leftover = LeftoverWork(
                self.policy.leftover,
                self._batching,
                self.running,
                self.limit,
                self._admitter,
                self._speculator,
                longest=self._chunk_limits.longest,
            )
        self._committer = Committer(
            tables, self.policy, self.lengths, self._speculator, self.running, self.preemptor, remove=self.remove
        )
        self._failed_steps = FailedSteps(tables, self.limit, self.running, self.preemptor, remove=self.remove)
        self.tuner = factory.make_tuner(config, self.times)
        """None unless `auto_tune` is on."""
        self.costs = TenantCosts() if config.price_per_hour else None
        self._waits_until: float | None = None
        """Until when the next step waits for a fuller batch, if it does."""
        self._deadlines = Timers()

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
            self.tables.prefixes.lookup(request)

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
            self.running.leave(request)
        return request

    def expire(self, now: float) -> list[tuple[Request, str, str | None]]:
        """Remove the requests whose time limit has passed, and apply the queue's `timeout_action`.

        Return each removed request with its finish reason. That is `deadline` if its own time limit has passed and it
        has run, `expired` if it has not run, and `shed` if its limit would have let it wait longer. The last two have a
        message.
        Never call this between `schedule` and `commit` of a step.
        """
        ended: list[tuple[Request, str, str | None]] = []
        for request, message in self.waiting.expire(now):
            self._deadlines.clear(request.request_id)
            self.running.leave(request)  # If it has run, it may have blocks in host memory.
            if request.deadline is None or request.deadline > now:
                ended.append((request, SHED, message))
            else:
                ended.append((request, DEADLINE, None) if request.num_preemptions else (request, EXPIRED, message))
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
        try:
            return self._schedule(now)
        except BaseException:  # Ctrl-C while drafts are made, for one.
            self.break_off(self._begun())
            raise

    def _begun(self) -> StepPlan:
        """Return what a plan would have had that was broken off before any request was scheduled."""
        out, forked, into = self.tables.planned.take_copies()
        return StepPlan(
            (),
            preempted=tuple(self.preemptor.preempted),
            swapped_out=out,
            forked=forked,
            swapped_in=into,
            imported=self.tables.planned.take_imported(),
        )

    def _schedule(self, now: float) -> StepPlan:
        self.preemptor.begin_step(now)
        changes = () if self.tuner is None else self._tune(self.tuner, now)
        if self._waits_until is not None:
            return StepPlan((), changes=changes)
        self._make_room(now)
        scheduled, prompts, allowance = self._decodes_and_prompts(now)
        padding = self._batching.padding(0 if prompts.scheduled else len(scheduled))
        scheduled = self._speculator.with_drafts(scheduled, allowance)
        if self._leftover is not None:
            scheduled += self._leftover.schedule(scheduled, prompts, allowance, now)
        return self._plan(scheduled, changes, padding=padding, prefill_budget=allowance.budget)

    def _make_room(self, now: float) -> None:
        """Give running requests blocks for their tokens, and the first waiting one the room of those it outranks."""
        self.tables.host.settle()
        self._batching.begin_step(now)
        self._admission.begin_step(now)
        self.preemptor.move_beams(self._committer.moving)
        self._committer.moving.clear()
        self.preemptor.make_room()
        if self.policy.preempts and (request := self._batching.next(now)) is not None:
            self.preemptor.preempt_for(request)

    def _decodes_and_prompts(self, now: float) -> tuple[list[ScheduledRequest], PromptChunks, PrefillAllowance]:
        """Schedule all but drafts and leftover requests. Also return which of it are prompts, and what is left."""
        limited = self.policy.shares(self.running.values())
        scheduled = self.running.decodes(leftover=False) if self._batching.mixes else []
        if limited and not self._admitter.lacks_room:
            # While others wait for the room that a limited tenant holds, it would only hold it for longer.
            scheduled = in_turn(scheduled, limited)
        allowance = self._allowance(scheduled, limited, now)
        prompts = self._prompts(allowance, now, limited, is_alone=not scheduled)
        if limited and not scheduled and not prompts.scheduled:
            allowance.lift_credits()  # Nobody else can use the step.
            prompts = self._prompts(allowance, now, limited, is_alone=True)
        scheduled += prompts.scheduled
        if not scheduled and self.running and not self._batching.mixes:
            scheduled = self.running.decodes(leftover=False)
            allowance = PrefillAllowance(self.limit.tokens - sum([each.num_tokens for each in scheduled]))
        return scheduled, prompts, allowance

    def _plan(
        self,
        scheduled: Sequence[ScheduledRequest],
        changes: tuple[Change, ...],
        *,
        padding: int,
        prefill_budget: PrefillBudget,
    ) -> StepPlan:
        out, forked, into = self.tables.planned.take_copies()
        requests = [each.request for each in scheduled]
        ends = [each.end for each in scheduled]
        return StepPlan(
            tuple(scheduled),
            self.tables.gather(requests, ends),
            preempted=tuple(self.preemptor.preempted),
            swapped_out=out,
            forked=forked,
            swapped_in=into,
            imported=self.tables.planned.take_imported(),
            states=self.tables.plan_states(requests, ends),
            padding=padding,
            prefill_budget=prefill_budget,
            shows_states=self.lengths.reads_states,
            changes=changes,
        )

    def _tune(self, tuner: AutoTuner, now: float) -> tuple[Change, ...]:
        load = Load(self.running, self.waiting)
        changes = tuner.tune(now, load, self.preemptor.num_preemptions)
        self.limit.max_tokens, self.limit.max_sequences = tuner.token_budget, tuner.max_num_seqs
        self._budget.target = tuner.step_seconds
        self._admission.next_tokens = tuner.watermark
        self._waits_until = None
        if min(self._deadlines.next_due, self.waiting.next_due) == math.inf:
            # A request with a limit of its own has no time to wait.
            self._waits_until = tuner.waits_until(now, load)
        return changes

    def _allowance(
        self, decodes: Sequence[ScheduledRequest], limited: Mapping[str, float], now: float
    ) -> PrefillAllowance:
        """Return what prompts may take of a step beside its decodes."""
        running = [request for request in self.running.values() if not request.is_leftover]
        present = len(self.waiting) - self.waiting.num_leftover + len(running)
        known = self.waiting.num_tokens - self.waiting.num_leftover_tokens
        known += sum([len(request.token_ids) for request in running])
        if present > self.limit.sequences:
            known, present = known * self.limit.sequences // present, self.limit.sequences
        tokens = sum([len(decode.token_ids) for decode in decodes])
        left = self.limit.tokens - tokens
        if self._leftover is not None:
            left -= self._leftover.reserved(now, left)
        return self._budget.for_prompts(
            left,
            Decodes(tokens, sum([decode.first for decode in decodes])),
            Decodes(present, known),
            limited,
        )

    def _prompts(
        self, allowance: PrefillAllowance, now: float, limited: Collection[str], *, is_alone: bool
    ) -> PromptChunks:
        """Schedule running prompts and new requests. `is_alone`: the step has no decodes.

        Prompts that the first new request outranks come last. So do those of limited tenants, but before new requests
        of the same tenant.
        """
        unfinished = self.running.unfinished(leftover=False)
        limits = self._chunk_limits
        if self.tuner is not None and limits.mixes:
            longest = self.tuner.max_chunk(allowance.budget.tokens, len(unfinished))
            beyond = self.limit.most_tokens - self.limit.tokens
            limits = limits._replace(longest=min(limits.longest, longest), beyond=beyond)
        newcomer = self._batching.next(now) if self.policy.preempts and unfinished else None
        postponed = [request for request in unfinished if request.tenant in limited]
        outranked = [
            request for request in unfinished if newcomer is not None and self.preemptor.outranks(newcomer, request)
        ]
        chunks = PromptChunks(allowance, limits, unfinished, postponed=postponed, is_alone=is_alone)
        chunks.add([request for request in unfinished if request not in postponed and request not in outranked])
        self._admitter.admit(chunks, now)
        if limits.mixes or not chunks.scheduled:
            chunks.add([request for request in outranked if request not in postponed])
            chunks.catch_up()
        return chunks

    # -- after the step ----------------------------------------------------------------------------------------------

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from the duration of a step. Call this before `commit`."""
        self.times.observe(plan.num_tokens, plan.num_cached, plan.num_pairs, seconds)
        self._speculator.observe_step(plan, seconds)
        self._batching.observe(plan, seconds)
        self.limit.step_ran()
        if self.costs is not None:
            self.costs.charge(plan, self.times.coefficients, seconds)

    def fail_step(self, plan: StepPlan) -> list[Request]:
        """Remove the requests of a step that failed; see `FailedSteps.fail`."""
        return self._failed_steps.fail(plan)

    def break_off(self, plan: StepPlan) -> None:
        """After a step that was broken off; see `FailedSteps.break_off`."""
        self._failed_steps.break_off(plan)

    def shrink_after_oom(self, plan: StepPlan) -> bool:
        """After a step for which the device had too little memory; see `FailedSteps.shrink_after_oom`."""
        return self._failed_steps.shrink_after_oom(plan)

    def commit(self, plan: StepPlan, results: Sequence[StepResult], now: float) -> list[Committed]:
        """Account for a step that ran; see `Committer.commit`."""
        self.preemptor.now = now
        committed = self._committer.commit(plan, results, now)
        if self.tuner is not None:
            self.tuner.committed(committed, now)
        if self.costs is not None:
            self.costs.committed(committed)
        return committed

    def completed(self, request: Request) -> None:
        """Learn from a request whose output is complete."""
        self._committer.completed(request)
