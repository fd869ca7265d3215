"""What must hold of any step plan, computed from the plan and the requests alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import SchedulerConfig


def _is_decode(share: ScheduledRequest, joined: Sequence[Request]) -> bool:
    """Whether it has only tokens of the request's last step: the sampled one, and those that a grammar forced."""
    return share.request.num_uncomputed <= share.request.num_new and share.request not in joined


def check_limits(plan: StepPlan, scheduler: Scheduler, joined: Sequence[Request]) -> None:
    """Tokens, sequences and chunks."""
    config, running = scheduler.config, scheduler.running.values()
    chunk = {share.request.request_id: share.num_tokens for share in plan.scheduled}
    assert len(chunk) == len(plan.scheduled) <= len(running) <= config.max_num_seqs
    assert chunk.keys() <= scheduler.running.keys()
    assert plan.num_tokens <= config.max_num_batched_tokens
    assert all(1 <= _known(share) <= share.request.num_uncomputed for share in plan.scheduled)
    assert {request.request_id for request in joined} <= chunk.keys(), "admitted, but not a token is computed"
    assert plan.prefill_budget is not None
    prompts = [s for s in plan.scheduled if not _is_decode(s, joined)]
    assert sum(_known(share) for share in prompts) <= plan.prefill_budget.tokens
    if config.batching_strategy == "continuous" and config.enable_chunked_prefill:
        decoding = {s.request for s in plan.scheduled} - {s.request for s in prompts}
        prefilling = [r for r in running if r not in decoding and (r in joined or not r.decodes)]
        unfinished = [r for r in prefilling if chunk.get(r.request_id, 0) < r.num_uncomputed]
        for kind in (True, False):  # Leftover prompts are counted apart.
            alike = [request for request in unfinished if request.is_leftover == kind]
            # After a lack of memory, steps are smaller, and several that had joined as a whole may be unfinished.
            joined_in_part = any(request in alike for request in joined)
            assert not joined_in_part or len(alike) <= (config.max_num_partial_prefills or len(running))
        assert all(_known(s) <= (config.long_prefill_token_threshold or _known(s)) for s in prompts)
        return
    assert len(prompts) in (0, len(plan.scheduled)), "prompts and decodes in a step"
    whole = all(_known(share) == share.request.num_uncomputed for share in prompts)
    assert whole or len(plan.scheduled) == 1, "a prompt is cut though it has no step of its own"


def check_time(plan: StepPlan, scheduler: Scheduler, joined: Sequence[Request]) -> None:
    """Beside decodes, prompts take no more time than an adaptive budget has for them, or few tokens."""
    config, times = scheduler.config, scheduler.times
    shares = [s for s in plan.scheduled if not s.request.is_leftover]
    decodes = [s for s in shares if _is_decode(s, joined)]
    chunks = [s for s in shares if s not in decodes]
    if not (config.token_budget == "adaptive" and decodes and chunks and times.known):
        return
    beside = times.decode_seconds(sum(map(_known, decodes)), sum(s.first for s in decodes))
    target, least = (config.target_itl_ms or 0.0) / 1e3, 16
    if config.target_itl_ms is None:
        here = [*scheduler.waiting, *scheduler.running.values()]
        here = [request for request in here if not request.is_leftover]
        slots = min(config.max_num_seqs, scheduler.limit.tokens)
        share = min(1.0, slots / len(here))
        context = sum(len(request.token_ids) for request in here) * share
        target, least = 2.7 * times.decode_seconds(round(len(here) * share), round(context)), 64
    seconds = sum(times.chunk_seconds(s.first, _known(s)) for s in chunks)
    assert beside + seconds <= target * (1 + 1e-6) + 1e-9 or sum(map(_known, chunks)) <= least


def check_leftover(
    plan: StepPlan,
    scheduler: Scheduler,
    classes: Mapping[str, Mapping[str, Any]],
    class_of: Callable[[Request], str],
    credit: Mapping[str, float],
) -> None:
    """Leftover requests have no time that a class with targets wants, or few tokens."""
    leftover = [share for share in plan.scheduled if classes[class_of(share.request)].get("leftover")]
    others = [share for share in plan.scheduled if share not in leftover]
    if not (leftover and scheduler.times.known):
        return
    sizes = [(share.first, share.num_tokens) for share in others]
    decodes = _seconds(scheduler, [(s.first, s.num_tokens) for s in others if s.request.decodes])
    without = _seconds(scheduler, sizes)
    beside = _seconds(scheduler, sizes + [(share.first, _known(share)) for share in leftover])
    if others:
        present = [classes[class_of(share.request)] for share in others]
        limit = min(each.get("target_itl_ms", 1080 * decodes) for each in present) / 1000
    else:
        present = [each for each in classes.values() if not each.get("leftover")]
        limit = min(each.get("target_ttft_ms", scheduler.config.target_ttft_ms) for each in present) / 10_000
    behind = min(64, max([0.0, *credit.values()]))
    in_time = beside <= max(limit, without) * (1 + 1e-6) + 1e-9
    few = sum(map(_known, leftover)) < max(behind + 1, 0 if others else 17)
    assert in_time or few, "leftover work takes the time of others"


def _seconds(scheduler: Scheduler, sizes: Iterable[tuple[int, int]]) -> float:
    """What a step takes by the model. `sizes` has the first position and the number of tokens of each request."""
    sizes = list(sizes)
    pairs = sum(tokens * first + tokens * (tokens + 1) // 2 for first, tokens in sizes)
    return scheduler.times.step_seconds(sum(tokens for _, tokens in sizes), sum(first for first, _ in sizes), pairs)


def check_drafts(plan: StepPlan, tables: BlockTables) -> None:
    """Drafts follow all known tokens of requests that have an output, and may belong to it."""
    for share in plan.scheduled:
        request = share.request
        if share.num_draft:
            assert share.samples
            assert share.known_end == len(request.token_ids) > len(request.prompt_ids)
            assert request.num_output + share.num_draft < request.max_tokens
            assert len(request.blocks) == tables.blocks_for(share.end)
        else:
            assert len(request.blocks) <= tables.blocks_for(len(request.token_ids))


def arriving_blocks(plan: StepPlan) -> set[int]:
    """The blocks that a step copies in from elsewhere."""
    return {block for _, block in plan.swapped_in} | {block for _, blocks in plan.imported for block in blocks}


def _known(share: ScheduledRequest) -> int:
    """How many known tokens it has."""
    return share.num_tokens - share.num_draft


def check_holds(plan: StepPlan, tables: BlockTables, held: Sequence[Request], joined: Sequence[Request]) -> None:
    """Whoever waits for another's prefix waits for a block that this very step fills, and nobody computes it too."""
    for request in held:
        assert request not in joined
        assert any(_fills_for(share, request, tables) for share in plan.scheduled), "held for nothing"
    arriving = arriving_blocks(plan)
    for place, share in enumerate(plan.scheduled):
        request, first = share.request, share.request.num_computed // tables.block_size
        if tables.prefixes.enabled and request in joined and not arriving.intersection(request.blocks):
            # What decodes fill has no name yet.
            for earlier in (other for other in plan.scheduled[:place] if not _is_decode(other, joined)):
                assert not _fills(earlier, request, tables, first), "computed twice in a step"


def _fills_for(share: ScheduledRequest, request: Request, tables: BlockTables) -> bool:
    last = (len(request.token_ids) - 1) // tables.block_size
    return any(_fills(share, request, tables, index) for index in range(last))


def _fills(share: ScheduledRequest, request: Request, tables: BlockTables, index: int) -> bool:
    """Whether a share completes block `index` of another request that may use it."""
    other, size = share.request, tables.block_size
    end = (index + 1) * size
    return (
        other is not request
        and end <= request.max_reused_tokens
        and other.num_named < index + 1
        and end <= other.num_computed + share.num_tokens
        and other.token_ids[:end] == request.token_ids[:end]
        and (other.tenant == request.tenant or not tables.prefixes.per_tenant)
    )


def check_swaps(plan: StepPlan, tables: BlockTables, live: Iterable[Request]) -> None:
    """Copies go from and to blocks that belong to those whose content they carry."""
    pinned = {block for request in live for block in request.host_blocks}
    assert {block for _, block in plan.swapped_out} <= pinned | set(tables.host._arriving.values())
    assert not {block for block, _ in plan.swapped_in} & pinned
    assert not {block for block, _ in plan.swapped_in} & {block for _, block in plan.swapped_out}, "read too late"
    owned = {block for share in plan.scheduled for block in share.request.blocks}
    assert arriving_blocks(plan) <= owned
    assert len(arriving_blocks(plan)) == len(plan.swapped_in) + sum(len(blocks) for _, blocks in plan.imported)


class NaiveBatch:
    """The batch of a strategy that runs one to its end, and the padding that it would take."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._lengths: list[int] = []
        self._decodes = False
        self._before = 0
        """Padding of batches that have ended."""
        self._slots = 0
        """Empty ones in decodes of this batch."""
        self._counted = 0

    def check(self, plan: StepPlan, scheduler: Scheduler, before: Sequence[Request], joined: Sequence[Request]) -> None:
        if self._config.batching_strategy == "continuous":
            assert plan.padding == 0
            return
        if not before and joined:
            self._before += self._prompts() + self._slots
            self._lengths, self._decodes, self._slots = [], False, 0
        assert not (joined and self._decodes), "a request joins a batch that decodes"
        self._lengths += [len(request.token_ids) for request in joined]
        assert len(self._lengths) <= self._config.max_num_seqs
        if plan.scheduled and not joined and all(_is_decode(share, joined) for share in plan.scheduled):
            self._decodes = True
            self._slots += len(self._lengths) - len(plan.scheduled)
        self._counted += plan.padding
        assert self._counted == self._before + self._prompts() + self._slots, "padding is miscounted"

    def _prompts(self) -> int:
        return len(self._lengths) * max(self._lengths, default=0) - sum(self._lengths)
