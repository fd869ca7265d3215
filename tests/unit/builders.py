"""Short ways to make what the engine's core is made of."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from inflight import PoolingParams, RequestOptions, SamplingParams
from inflight.beam_search.beam_group import BeamGroup
from inflight.beam_search.search import BeamSearch
from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_table_array import tables_of
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.host_pool import HostPool
from inflight.logits_processors.factory import make_processors
from inflight.request import Request
from inflight.scheduler.admission import MaxUtilization
from inflight.scheduler.committed import Committed
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.waiting_queue import WaitingQueue
from inflight.speculation.drafter import Drafter
from inflight.step_result import StepResult

_numbers: dict[str, int] = {}
"""A number for each request id, so that no two of them have a prompt in common."""


def make_request(
    request_id: str,
    prompt: Iterable[int] | int = 4,
    *,
    max_tokens: int = 4,
    stop_token_ids: Iterable[int] = (),
    seed: int = 0,
    arrival: float = 0.0,
    priority: int = 0,
    tenant: str = "",
    target_ttft_ms: int | None = None,
    options: RequestOptions | None = None,
    bad_words: Sequence[Sequence[int]] = (),
    num_logits: int = sys.maxsize,
    grammar: Any = None,
    pooling: str | None = None,
    **params: Any,
) -> Request:
    """A request; a prompt given as a number has as many tokens, different from those of other requests.

    With `pooling`, it wants an embedding and generates nothing.
    """
    if isinstance(prompt, int):
        first = 1000 * (1 + _numbers.setdefault(request_id, len(_numbers)))
        prompt = range(first, first + prompt)
    prompt_ids, ends = list(prompt), frozenset(stop_token_ids)
    sampling = SamplingParams(max_tokens=None if pooling else max_tokens, **params)
    request = Request(
        request_id=request_id,
        prompt_ids=prompt_ids,
        params=sampling,
        max_tokens=0 if pooling else max_tokens,
        seed=seed,
        stop_token_ids=ends,
        processors=make_processors(
            sampling, prompt_ids=prompt_ids, stop_token_ids=ends, bad_words=bad_words, num_logits=num_logits
        ),
        grammar=grammar,
        pooling=PoolingParams(pooling=pooling) if pooling else None,
        arrival=arrival,
        options=options or RequestOptions(tenant=tenant, target_ttft_ms=target_ttft_ms),
        priority=priority,
    )
    if sampling.beam_width > 1:
        request.beams = BeamGroup(request, BeamSearch(sampling, max_tokens=max_tokens, stop_token_ids=ends))
    return request


def make_plan(*shares: tuple[Request, int]) -> StepPlan:
    """A plan of so many next tokens of requests that have their blocks."""
    scheduled = tuple(ScheduledRequest.next_of(request, count) for request, count in shares)
    return StepPlan(scheduled, tables_of([request.blocks for request, _ in shares]))


def make_tables(
    num_blocks: int = 8,
    block_size: int = 4,
    *,
    prefix_caching: bool = True,
    per_tenant: bool = False,
    host: int = 0,
    events: BlockEvents | None = None,
) -> BlockTables:
    """`host` is the number of blocks in host memory."""
    return BlockTables(
        BlockPool(num_blocks),
        block_size,
        prefix_caching=prefix_caching,
        per_tenant=per_tenant,
        host=HostPool(host),
        events=events,
    )


def admit(tables: BlockTables, request: Request) -> bool:
    """Give a request its blocks, if there are enough."""
    hit = tables.prefixes.lookup(request)
    if tables.fresh_blocks(request, hit) > tables.pool.num_free:
        return False
    tables.admit(request, hit)
    return True


def make_scheduler(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    max_num_seqs: int = 8,
    budget: int = 32,
    prefix_caching: bool = True,
    per_tenant: bool = False,
    policies: QueuePolicies | None = None,
    swap_seconds_per_block: float = 0.0,
    make_queue: Callable[[QueuePolicies, SchedulingPolicy], WaitingQueue] = WaitingQueue,
    next_tokens: int = MaxUtilization.next_tokens,
    drafter: Drafter | None = None,
    events: BlockEvents | None = None,
    **settings: Any,
) -> Scheduler:
    """`next_tokens` is that of the admission policy. With 0, requests in a small cache are soon preempted."""
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **settings)
    host = config.swap_space_tokens // block_size
    tables = make_tables(
        num_blocks, block_size, prefix_caching=prefix_caching, per_tenant=per_tenant, host=host, events=events
    )
    scheduler = Scheduler(
        config,
        tables,
        policies,
        swap_seconds_per_block=swap_seconds_per_block,
        drafter=drafter,
        make_queue=make_queue,
    )
    if isinstance(scheduler._admission, MaxUtilization):
        scheduler._admission.next_tokens = next_tokens
    return scheduler


def shares(plan: StepPlan) -> dict[str, int]:
    """Tokens of a plan by request id, in the plan's order."""
    return {share.request.request_id: share.num_tokens for share in plan.scheduled}


def step(scheduler: Scheduler, token: int = 7) -> dict[str, int]:
    """Plan a step and commit it with the same token for everybody; returns the shares."""
    plan = scheduler.schedule(0.0)
    planned = shares(plan)
    commit(scheduler, plan, [token] * len(plan.sampling))
    return planned


def commit(scheduler: Scheduler, plan: StepPlan, tokens: Sequence[int], now: float = 0.0) -> list[Committed]:
    """Commit a plan with a token for each of `plan.sampling`."""
    return scheduler.commit(plan, [StepResult((token,)) for token in tokens], now)


def holds(scheduler: Scheduler, request_id: str) -> bool:
    """Whether a request waits or runs."""
    return request_id in scheduler.waiting or request_id in scheduler.running


def waiting(scheduler: Scheduler) -> list[str]:
    """Ids of the requests that wait, in order."""
    return [request.request_id for request in scheduler.waiting]
