"""Creates the exchangeable parts of a scheduler from its settings."""

import math
from collections.abc import Callable, Mapping

from inflight.config import EngineConfig
from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.host_pool import HostPool
from inflight.kv_cache.recurrent_states import RecurrentStates
from inflight.request import Request
from inflight.scheduler.admission import Admission, FuturePeak, GuaranteedNoEvict, MaxUtilization
from inflight.scheduler.arrival_forecast import ArrivalForecast
from inflight.scheduler.auto_tune.auto_tuner import AutoTuner
from inflight.scheduler.batching import Batching, Bucketed, Continuous, Dynamic, Static
from inflight.scheduler.output_lengths.predictor import LengthPredictor
from inflight.scheduler.output_lengths.ranker import PairwiseRanker
from inflight.scheduler.output_lengths.state_regression import StateRegression
from inflight.scheduler.output_lengths.template_quantiles import TemplateQuantiles
from inflight.scheduler.output_lengths.tenant_quantiles import TenantQuantiles
from inflight.scheduler.output_lengths.watched import Watched
from inflight.scheduler.policies.classes import Classes
from inflight.scheduler.policies.fair import Fair
from inflight.scheduler.policies.fcfs import Fcfs
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.policies.priority import Priority
from inflight.scheduler.policies.sjf import ShortestJobFirst
from inflight.scheduler.policies.slo import SloAware
from inflight.scheduler.prefill_budget import AdaptiveBudget, FixedBudget
from inflight.scheduler.request_class import read_request_classes
from inflight.scheduler.row_times import RowTimes
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.step_time import StepTimeModel
from inflight.scheduler.waiting_queue import WaitingQueue
from inflight.speculation.drafter import Drafter
from inflight.speculation.lookup_drafter import LookupDrafter
from inflight.speculation.measured_step_time import MeasuredStepTime
from inflight.speculation.speculative_config import SpeculativeConfig
from inflight.speculation.speculator import NoSpeculation, Speculator


def make_tables(
    config: EngineConfig,
    num_blocks: int,
    num_host_blocks: int = 0,
    events: BlockEvents | None = None,
    hash_key: bytes | None = None,
    *,
    num_state_snapshots: int | None = None,
    reuses_output: bool = True,
) -> BlockTables:
    """Create the tables of a cache with so many blocks, and so many in host memory.

    `events` records which blocks enter and leave the prefix cache. `hash_key` names them if `prefix_caching_key` is not
    set. `num_state_snapshots` is None if the model has no recurrent states. `reuses_output`: see `RecurrentStates`.
    """
    return BlockTables(
        BlockPool(num_blocks),
        config.block_size,
        prefix_caching=config.enable_prefix_caching,
        per_tenant=config.prefix_caching_per_tenant,
        hash_key=config.prefix_caching_key.encode() if config.prefix_caching_key else hash_key,
        host=HostPool(num_host_blocks),
        events=events,
        states=RecurrentStates(config.max_num_seqs, num_state_snapshots, config.block_size, reuses_output=reuses_output)
        if num_state_snapshots is not None
        else None,
    )


def make_lengths(config: SchedulerConfig) -> LengthPredictor:
    """Create the predictor that `length_predictor` names."""
    match config.length_predictor:
        case "template":
            return Watched(TemplateQuantiles())
        case "ranker":
            return Watched(PairwiseRanker())
        case "hidden_state":
            return Watched(StateRegression())
    return TenantQuantiles()


def make_policy(
    config: SchedulerConfig, tables: BlockTables, times: StepTimeModel, lengths: LengthPredictor
) -> SchedulingPolicy:
    """Create the policy that `scheduling_policy` names."""

    def uncached(request: Request) -> int:
        return len(request.token_ids) - tables.num_known(request, tables.prefixes.lookup(request))

    def prefill_seconds(request: Request) -> float:
        return times.prefill_seconds(uncached(request))

    def answer_seconds(request: Request) -> float:
        return lengths.remaining(request) * times.decode_seconds(1, len(request.token_ids))

    def slo(target_ms: float) -> SchedulingPolicy:
        return SloAware(
            target_ms / 1e3,
            shed=config.shed_lost_requests,
            prefill_seconds=prefill_seconds,
            answer_seconds=answer_seconds,
        )

    def by_class() -> SchedulingPolicy:
        classes = read_request_classes(config.request_classes)
        orders = {
            each.name: slo(each.target_ttft_ms or config.target_ttft_ms)
            if each.policy == "slo"
            else makers[each.policy]()
            for each in classes
        }
        return Classes(classes, orders, times, config.target_ttft_ms / 1e3)

    makers: dict[str, Callable[[], SchedulingPolicy]] = {
        "fcfs": Fcfs,
        "sjf": lambda: ShortestJobFirst(config.sjf_ageing, lengths, uncached, times, config.max_num_seqs),
        "priority": lambda: Priority(config.priority_ageing_seconds),
        "fair": lambda: Fair(config.tenant_weights),
        "slo": lambda: slo(config.target_ttft_ms),
        "classes": by_class,
    }
    return makers[config.scheduling_policy]()


def make_admission(config: SchedulerConfig, tables: BlockTables, lengths: LengthPredictor) -> Admission:
    """Create the admission policy that `batch_scheduler_policy` names."""
    if config.batch_scheduler_policy == "future_peak":
        return FuturePeak(tables, lengths)
    if config.batch_scheduler_policy == "guaranteed_no_evict":
        return GuaranteedNoEvict(tables)
    return MaxUtilization(tables, make_forecast(config) if config.arrival_forecast_ms else None)


def make_forecast(config: SchedulerConfig) -> ArrivalForecast:
    """Create what foresees arrivals."""
    ageing = config.priority_ageing_seconds if config.scheduling_policy == "priority" else math.inf
    return ArrivalForecast(config.arrival_forecast_ms / 1e3, ageing)


def make_batching(config: SchedulerConfig, waiting: WaitingQueue, running: Mapping[str, Request]) -> Batching:
    """Create the strategy that `batching_strategy` names."""
    slots, wait = config.max_num_seqs, config.batch_wait_ms / 1e3
    match config.batching_strategy:
        case "static":
            return Static(waiting, running, slots=slots, wait=wait)
        case "dynamic":
            return Dynamic(waiting, running, slots=slots, wait=wait, tokens=config.max_num_batched_tokens)
        case "bucketed":
            return Bucketed(waiting, running, slots=slots, wait=wait)
    return Continuous(waiting, running, mixes=config.enable_chunked_prefill, delay_factor=config.scheduler_delay_factor)


def make_budget(config: SchedulerConfig, times: StepTimeModel) -> FixedBudget:
    """Create the budget that `token_budget` names, or the one that the tuner sets."""
    if config.auto_tune:
        return AdaptiveBudget(None, times)
    if config.token_budget == "adaptive":
        target = None if config.target_itl_ms is None else config.target_itl_ms / 1e3
        return AdaptiveBudget(target, times)
    return FixedBudget()


def make_tuner(config: SchedulerConfig, times: StepTimeModel) -> AutoTuner | None:
    """Create what tunes the settings, if `auto_tune` is on."""
    return AutoTuner(config, times) if config.auto_tune else None


def make_speculator(
    config: SchedulerConfig,
    tables: BlockTables,
    row_times: RowTimes | None,
    drafter: Drafter | None,
    num_logits: int,
) -> NoSpeculation:
    """Create what drafts, with `drafter` in place of the drafter that the config names, if it is given.

    It has a step-time model of its own: the others must not plan differently because tokens are drafted.
    """
    if not config.speculative_config:
        return NoSpeculation()
    settings = SpeculativeConfig.of(config.speculative_config)
    times = StepTimeModel() if row_times is None else MeasuredStepTime(row_times)
    return Speculator(settings, drafter or LookupDrafter(settings, num_logits), tables, times)


def check_levels(config: SchedulerConfig, levels: int) -> None:
    """Raise ValueError if a setting does not work with the number of priority levels."""
    policy = config.scheduling_policy
    if policy == "priority" and levels < 2:
        raise ValueError(f"scheduling_policy is 'priority'; priority_levels is {levels}, it must be at least 2")
    if policy == "fair" and levels:
        raise ValueError(f"scheduling_policy is 'fair', which knows tenants; priority_levels is {levels}, not 0")
    if config.arrival_forecast_ms and levels < 2:
        raise ValueError(
            f"arrival_forecast_ms is {config.arrival_forecast_ms}; priority_levels is {levels}, it must be at least 2"
        )
