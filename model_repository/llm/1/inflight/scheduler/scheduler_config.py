"""Settings of the scheduler: how it orders, admits, batches and preempts requests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.scheduler.request_class import read_request_classes
from inflight.speculation.speculative_config import SpeculativeConfig

BATCHING_STRATEGIES = ("continuous", "static", "dynamic", "bucketed")
SCHEDULING_POLICIES = ("fcfs", "sjf", "priority", "fair", "slo", "classes")
ADMISSION_POLICIES = ("max_utilization", "guaranteed_no_evict", "future_peak")
PREEMPTION_MODES = ("recompute", "swap", "auto")
TOKEN_BUDGETS = ("fixed", "adaptive")
LENGTH_PREDICTORS = ("tenant", "template", "ranker", "hidden_state")
AUTO_TUNE_OBJECTIVES = ("goodput", "throughput", "latency", "cost")

_MAX_TENANT_WEIGHTS = 10_000


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Settings of the scheduler. A setting that vLLM or TensorRT-LLM also has bears the name that it has there.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    max_num_seqs: int = 64
    """Maximum number of sequences that run at once; also the size of a static batch and of a bucket."""

    max_num_batched_tokens: int = 512
    """Maximum number of tokens in a step, decodes and prompt chunks together; also how many tokens a dynamic batch
    collects."""

    batching_strategy: str = "continuous"
    """`continuous`: requests join and leave at every step. The other strategies run a batch until its longest
    request ends: `static` collects `max_num_seqs` requests, `dynamic` collects `max_num_batched_tokens` prompt
    tokens, and `bucketed` is `static` with prompts of similar length."""

    batch_wait_ms: float = 50.0
    """How long `static`, `dynamic` and `bucketed` wait for a batch to fill, counted from the arrival of the request at
    the head of the queue."""

    scheduling_policy: str = "fcfs"
    """Who is admitted next: `fcfs` (first come, first served), `sjf` (least expected work), `priority` (levels;
    waiting raises a request), `fair` (the tenant that has received least), `slo` (least time left to meet
    `target_ttft_ms`), `classes` (by `request_classes`)."""

    sjf_ageing: float = 20.0
    """Under `sjf`: tokens of expected work that one second of waiting offsets."""

    length_predictor: str = "tenant"
    """What output lengths are predicted from, for `sjf`, `slo` and `future_peak`. `tenant`: from the tenant's past
    outputs. `template`: from those of prompts that begin the same way. `ranker`: from a score of the prompt's tokens,
    learned from each output that ends. `hidden_state`: from the model's state after the prompt, learned likewise; it is
    known once a request runs. While they order outputs no better than `tenant` does, `tenant` is used instead."""

    priority_ageing_seconds: float = 30.0
    """Under `priority`: seconds of waiting that raise a request by one level."""

    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Under `fair`: the shares of tenants, as JSON. Tenants that are not named have share 1."""

    request_classes: Mapping[str, Any] = field(default_factory=dict)
    """Under `classes`: the classes, as JSON, such as `{"chat": {"target_itl_ms": 60}, "nightly": {"leftover": true}}`;
    see `RequestClass`. A request that names no class, and whose tenant and priority have none, is of the first one."""

    target_ttft_ms: float = 1000.0
    """Under `slo`: the target time to first token of requests that name none."""

    shed_lost_requests: bool = False
    """Under `slo`: refuse a waiting request once it cannot meet its target. Otherwise it waits behind those that
    can."""

    batch_scheduler_policy: str = "max_utilization"
    """When the KV cache has room for another request. `max_utilization` admits while blocks last and preempts when
    they run out. `guaranteed_no_evict` reserves the worst case and never preempts. `future_peak` admits while the
    predicted peak of all running requests fits."""

    arrival_forecast_ms: float = 0.0
    """Under `max_utilization` with `priority_levels`: admit no request into the blocks that prompts of higher levels
    will need within this time, as expected from their rate of late. So fewer requests are preempted. 0: off."""

    preemption_mode: str = "recompute"
    """What happens to the KV cache of a preempted request: `recompute` computes it again, `swap` copies it to host
    memory and back, `auto` chooses the cheaper one by the step-time model."""

    swap_space_tokens: int = 0
    """Size of the host memory for blocks of the KV cache, in tokens. Preempted requests keep theirs there, and prefixes
    that the KV cache has no room for use the rest. When preempted requests fill it, others are recomputed."""

    enable_chunked_prefill: bool = True
    """Cut prompts into chunks that fill the token budget beside the decodes. If false, a step holds either whole
    prompts or decodes, prompts first. Only `continuous` batching cuts prompts."""

    max_num_partial_prefills: int = 0
    """Maximum number of prompts that are computed in chunks at the same time. 0: no limit."""

    long_prefill_token_threshold: int = 0
    """Maximum number of tokens of one prompt in a step, so that short prompts can pass long ones. 0: no limit."""

    token_budget: str = "fixed"
    """`fixed`: every step may hold `max_num_batched_tokens` tokens. `adaptive`: beside decodes, only as many prompt
    tokens as keep the step within `target_itl_ms`, by the step-time model."""

    target_itl_ms: float | None = None
    """Inter-token latency that the adaptive token budget aims at. Default: 2.7 times what the latency would be if all
    present requests decoded and there were no prompts."""

    scheduler_delay_factor: float = 0.0
    """Admit no request that has waited less than this factor times the duration of the last step with prompts, so
    that arrivals are grouped."""

    auto_tune: str = ""
    """Adjust settings to the load while serving, for `goodput` (most requests within both targets), `throughput` (most
    tokens a second, without targets), `latency` (shortest gaps, with first tokens in time) or `cost` (least machine
    seconds for a token, within both targets). `max_num_seqs` and `max_num_batched_tokens` are upper bounds then,
    `token_budget` does not count, and `target_itl_ms` is for the mean gap of a request. Empty: off."""

    price_per_hour: float = 0.0
    """Price of an hour of the machine, in any currency. Tenants are charged for the seconds of the steps that they
    used; see the metrics. 0: nothing is charged."""

    speculative_config: Mapping[str, Any] = field(default_factory=dict)
    """Speculative decoding, as JSON with vLLM's names, such as `{"method": "ngram"}`; see `SpeculativeConfig`. Empty:
    off."""

    def __post_init__(self) -> None:
        if self.speculative_config:
            SpeculativeConfig.of(self.speculative_config)
        for name, known in (
            ("batching_strategy", BATCHING_STRATEGIES),
            ("scheduling_policy", SCHEDULING_POLICIES),
            ("batch_scheduler_policy", ADMISSION_POLICIES),
            ("preemption_mode", PREEMPTION_MODES),
            ("token_budget", TOKEN_BUDGETS),
            ("length_predictor", LENGTH_PREDICTORS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        for name, low in (
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("swap_space_tokens", 0),
            ("max_num_partial_prefills", 0),
            ("long_prefill_token_threshold", 0),
        ):
            require_count(name, getattr(self, name), low)
        for name in (
            *("batch_wait_ms", "sjf_ageing", "priority_ageing_seconds", "scheduler_delay_factor"),
            *("price_per_hour", "arrival_forecast_ms"),
        ):
            require_number(name, getattr(self, name), positive=False)
        require_number("target_ttft_ms", self.target_ttft_ms, positive=True)
        if self.target_itl_ms is not None:
            require_number("target_itl_ms", self.target_itl_ms, positive=True)
        self._check_auto_tune()
        self._check_tenant_weights()
        self._check_request_classes()
        self._check_arrival_forecast()
        if self.preemption_mode != "recompute" and not self.has_host_memory:
            raise ValueError(
                f"preemption_mode is {self.preemption_mode!r}; kv_offloading_size or swap_space_tokens must be over 0, "
                "so that there is host memory to swap to"
            )

    @property
    def has_host_memory(self) -> bool:
        """Whether blocks of the KV cache may go to host memory."""
        return self.swap_space_tokens > 0

    @property
    def max_draft(self) -> int:
        """Maximum number of drafted tokens of a request in a step."""
        if not self.speculative_config:
            return 0
        return SpeculativeConfig.of(self.speculative_config).num_speculative_tokens

    @property
    def max_sampled_rows(self) -> int:
        """Maximum number of positions that a step samples: one for each sequence, and one for each drafted token."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * (1 + self.max_draft))

    def _check_request_classes(self) -> None:
        classes = read_request_classes(self.request_classes)
        if bool(classes) != (self.scheduling_policy == "classes"):
            raise ValueError(
                f"scheduling_policy is {self.scheduling_policy!r} and request_classes has {len(classes)} classes; the "
                "policy 'classes' needs at least one, and the others have none"
            )
        mixes = self.batching_strategy == "continuous" and self.enable_chunked_prefill
        for each in classes if not mixes else ():
            if each.leftover:
                raise ValueError(
                    f"request_classes of {each.name!r}: leftover is true; batching_strategy must be 'continuous' and "
                    "enable_chunked_prefill true then"
                )

    def _check_arrival_forecast(self) -> None:
        if self.arrival_forecast_ms and self.batch_scheduler_policy != "max_utilization":
            raise ValueError(
                f"arrival_forecast_ms is {self.arrival_forecast_ms}; batch_scheduler_policy must be 'max_utilization' "
                f"then, not {self.batch_scheduler_policy!r}"
            )
        if self.arrival_forecast_ms and self.scheduling_policy == "classes":
            raise ValueError(
                f"arrival_forecast_ms is {self.arrival_forecast_ms}; scheduling_policy must not be 'classes' then, as "
                "classes have no levels"
            )

    def _check_auto_tune(self) -> None:
        if not self.auto_tune:
            return
        if self.auto_tune not in AUTO_TUNE_OBJECTIVES:
            raise ValueError(
                f"auto_tune is {self.auto_tune!r}; it must be empty or one of {', '.join(AUTO_TUNE_OBJECTIVES)}"
            )
        if self.batching_strategy != "continuous":
            raise ValueError(
                f"auto_tune is {self.auto_tune!r}; batching_strategy must be 'continuous' then, not "
                f"{self.batching_strategy!r}"
            )
        if self.auto_tune != "throughput" and self.target_itl_ms is None:
            raise ValueError(f"auto_tune is {self.auto_tune!r}; target_itl_ms must be given then")

    def _check_tenant_weights(self) -> None:
        if len(self.tenant_weights) > _MAX_TENANT_WEIGHTS:
            raise ValueError(
                f"tenant_weights has {len(self.tenant_weights)} tenants; it must have at most {_MAX_TENANT_WEIGHTS}"
            )
        for tenant, weight in self.tenant_weights.items():
            require_number(f"tenant_weights of {tenant!r}", weight, positive=True)


def require_count(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise ValueError unless a setting is a whole number of at least `low` and at most `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}; it must be a whole number")
    if value < low:
        raise ValueError(f"{name} is {value}; it must be at least {low}")
    if high is not None and value > high:
        raise ValueError(f"{name} is {value}; it must be at most {high}")


def require_number(name: str, value: object, *, positive: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}; it must be a number")
    if not (value > 0 if positive else value >= 0) or value == math.inf:
        raise ValueError(f"{name} is {value}; it must be finite and {'over' if positive else 'at least'} 0")
