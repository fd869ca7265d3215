"""Accounts for a step that ran: what is computed, new tokens, beams, drafts, and who ends."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from inflight.beam_search.beam_group import BeamGroup
from inflight.kv_cache.block_tables import BlockTables
from inflight.request import ERROR, INVALID, LENGTH, STOP, Request
from inflight.scheduler.committed import Committed
from inflight.scheduler.output_lengths.predictor import LengthPredictor
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.preemptor import Preemptor
from inflight.scheduler.running_set import RunningSet
from inflight.speculation.speculator import NoSpeculation
from inflight.step_result import StepResult


class Committer:
    """The part of the scheduler that knows the results of a step."""

    def __init__(
        self,
        tables: BlockTables,
        policy: SchedulingPolicy,
        lengths: LengthPredictor,
        speculator: NoSpeculation,
        running: RunningSet,
        preemptor: Preemptor,
        *,
        remove: Callable[[str], Request | None],
    ) -> None:
        """`remove` is the scheduler's."""
        self._tables = tables
        self._policy = policy
        self._lengths = lengths
        self._speculator = speculator
        self._running = running
        self._remove = remove
        self._preemptor = preemptor
        self.moving: list[BeamGroup] = []
        """Beam searches whose next beams need blocks."""

    def commit(self, plan: StepPlan, results: Sequence[StepResult], now: float) -> list[Committed]:
        """Account for a step that ran. `results[i]` belongs to `plan.answered[i]`, and was known at `now`.

        If one of its new tokens ends a request, the tokens after it are dropped. Finished requests are removed. A
        request without a new token that wants one is removed too, with the finish reason `invalid` if it forbids all
        tokens or its grammar failed, else `error`. So is one whose prompt was read in vain.
        """
        answers = list(zip(plan.answered, results, strict=True))
        failed = {e.request for e, result in answers if not result.token_ids and (e.samples or result.is_faulty)}
        size = self._tables.block_size
        for each in plan.scheduled:
            request = each.request
            request.has_run = True
            end = each.first + len(each.token_ids) - each.num_draft
            # Other requests must not reuse the keys and values of a failed one.
            if end // size > request.num_named and request not in failed:
                self._tables.prefixes.register(request, end)
            request.num_computed = end
        if self._tables.states is not None and plan.states is not None:
            self._tables.states.commit(plan.states, [each.request for each in plan.scheduled], failed)
        for each, result in answers if plan.shows_states else ():
            if result.prompt_state is not None:
                self._lengths.prompt_computed(each.request, result.prompt_state)
                self._policy.foreseen(each.request)
        committed = [
            self._append(each, result, now)
            if result.token_ids and not each.read and each.request.beams is None
            else self._conclude(each, result, now)
            for each, result in answers
        ]
        self._lengths.learn()
        self._policy.computed((each.request, each.num_tokens - each.num_draft) for each in plan.scheduled)
        for outcome in committed:
            if outcome.num_accepted:  # They count like decodes one after the other.
                self._policy.computed([(outcome.request, 1)] * outcome.num_accepted)
        self._policy.generated((outcome.request, outcome.num_generated) for outcome in committed)
        for each, result in answers:
            failed_draft = each.num_draft > 0 and not result.token_ids
            if (result.is_tainted or failed_draft) and self._running.has(each.request):
                # Attention cannot mask NaN, which may stand behind the tokens that count. Other blocks are cleared.
                each.request.may_draft = False
                self._preemptor.preempt(each.request, swap=False)
            elif each.request.became_long and self._running.has(each.request):
                each.request.block_hashes.clear()
                self._preemptor.preempt(each.request, swap=False)
        return committed

    def _conclude(self, each: ScheduledRequest, result: StepResult, now: float) -> Committed:
        request = each.request
        if request.beams is not None:
            return self._search(request, request.beams, result, now)
        if each.read and not result.is_faulty:
            request.read(each.read, result.states)
        if each.samples or result.is_faulty:
            return self._append(each, result, now)
        if not each.is_final_chunk:
            return Committed(request, (), None)
        self._remove(request.request_id)
        return Committed(request, (), LENGTH if request.pooling is None else STOP)

    def _search(self, request: Request, group: BeamGroup, result: StepResult, now: float) -> Committed:
        """Note what a beam found. When the last beam of its search is there, choose the next ones or end."""
        leader = group.leader
        if not self._running.has(leader):
            return Committed(leader, (), None)  # Another beam has failed in this step.
        if not result.token_ids:
            self._remove(leader.request_id)
            return Committed(leader, (), _why_none(result))
        for each in (leader, request):
            each.sampled_at(now)
        if group.found(request, result.logprobs[0].top):
            if not group.advance():
                self._remove(leader.request_id)
                return Committed(leader, (), group.best(LENGTH)[0].finish_reason)
            self.moving.append(group)
        return Committed(leader, (), None)

    def _append(self, each: ScheduledRequest, result: StepResult, now: float) -> Committed:
        request, new = each.request, result.token_ids
        if not new and each.num_draft:
            return Committed(request, (), None)  # The draft may be at fault. The request starts anew without one.
        if not new:
            self._remove(request.request_id)
            return Committed(request, (), _why_none(result))
        request.sampled_at(now)
        forced = request.num_forced
        token_ids, reason = request.append(new)
        accepted = self._accept(each) if each.num_draft else 0
        self._speculator.observe(request)
        if reason is not None:
            self.completed(request)
            self._remove(request.request_id)
        return Committed(request, token_ids, reason, request.num_forced - forced, accepted)

    def completed(self, request: Request) -> None:
        """Learn from a request whose output is complete."""
        self._lengths.observe(request)
        self._policy.finished(request)
        self._speculator.completed(request)

    def _accept(self, each: ScheduledRequest) -> int:
        """Count the drafted tokens that the output now has as computed, and return their number.

        The rest of the draft leaves no trace: its slots are written again, and its blocks are free.
        """
        request, first = each.request, each.known_end
        kept = request.token_ids[first : each.end]
        accepted = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(kept, each.draft, strict=False))))
        # If the request goes on, the logits of its last token are needed, so that it is computed again.
        end = max(first, min(first + accepted, len(request.token_ids) - 1))
        # The keys of a sequence that became long are those of a short one, and its first block might get another name.
        if end // self._tables.block_size > request.num_named and not request.became_long:
            self._tables.prefixes.register(request, end)
        request.num_computed = end
        request.num_drafted += each.num_draft
        request.num_accepted += accepted
        self._tables.trim(request)
        return accepted


def _why_none(result: StepResult) -> str:
    """Return the finish reason of a request without a new token."""
    return ERROR if result.is_tainted or result.is_faulty else INVALID
