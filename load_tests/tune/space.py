"""The settings that are searched, with the values that can make a difference under a load."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from inflight.config import EngineConfig
from load_tests.slo import Slo
from load_tests.traffic import Arrival

Choice: TypeAlias = Mapping[str, str]
"""The label of a value for each knob, by the knob's name."""

SEQS = (8, 16, 32, 64, 128)
TOKENS = (128, 512, 2048)
PREFILL_THRESHOLD = 256


@dataclass(frozen=True)
class Knob:
    """A setting, or several that only make sense together."""

    name: str
    values: Mapping[str, Mapping[str, Any]]
    """Settings of `EngineConfig`, by the label of the value."""
    default: str
    """The label of the value that the default configuration has."""
    ordered: bool = False
    """Whether the values rise."""


@dataclass(frozen=True)
class Space:
    """The knobs of a search. All other settings stay as they are in `base`, the default configuration."""

    base: EngineConfig
    knobs: Sequence[Knob]

    @property
    def default(self) -> Choice:
        """The choice of the default configuration."""
        return {knob.name: knob.default for knob in self.knobs}

    @property
    def size(self) -> int:
        """Number of choices."""
        return math.prod(len(knob.values) for knob in self.knobs)

    def choices(self) -> Iterator[Choice]:
        """All choices."""
        names = [knob.name for knob in self.knobs]
        for labels in itertools.product(*(knob.values for knob in self.knobs)):
            yield dict(zip(names, labels, strict=True))

    def settings(self, choice: Choice) -> dict[str, Any]:
        """The settings of a choice that the default configuration does not have."""
        chosen: dict[str, Any] = {}
        for knob in self.knobs:
            if choice[knob.name] != knob.default:
                chosen |= knob.values[choice[knob.name]]
        return chosen

    def config(self, choice: Choice) -> EngineConfig:
        """The default configuration with the settings of a choice."""
        return replace(self.base, **self.settings(choice))

    def guesses(self) -> list[Choice]:
        """Choices to try first: the default, then many sequences at once, few, and some with a target for gaps."""
        numbers = {knob.name: list(knob.values) for knob in self.knobs if knob.ordered}
        most = {name: labels[-1] for name, labels in numbers.items()}
        seqs = numbers.get("max_num_seqs", [""])
        few, half = ({"max_num_seqs": label} for label in (seqs[0], seqs[len(seqs) // 2]))
        whole_prompts, shortest = {"token_budget": "fixed"}, {"scheduling_policy": "sjf"}
        budgets = [label for knob in self.knobs if knob.name == "token_budget" for label in knob.values]
        even = {"token_budget": next((label for label in budgets if "target_itl_ms" in label), "")}
        wanted: list[Choice] = [
            {},
            most | whole_prompts,
            most | whole_prompts | shortest,
            few | whole_prompts | shortest,
            most | half | even | shortest,
        ]
        return [{knob.name: each.get(knob.name, knob.default) for knob in self.knobs} for each in wanted]


def space_for(base: EngineConfig, requests: Sequence[Arrival], users: int | None, slo: Slo) -> Space:
    """The space for a load. Values and knobs that cannot matter under it are left out.

    `base` is the default configuration, with a size of the KV cache.
    """
    longest_prompt = max(request.prompt_tokens for request in requests)
    at_once = len(requests) if users is None else users
    found = [
        _numbers("max_num_seqs", SEQS, at_once, base.max_num_seqs),
        _numbers("max_num_batched_tokens", TOKENS, at_once * longest_prompt, base.max_num_batched_tokens),
        _budgets(base, slo),
        _policies(base, requests, slo),
        _thresholds(base, longest_prompt),
        _admissions(base, requests, at_once),
    ]
    return Space(base, [knob for knob in found if len(knob.values) > 1])


def _numbers(name: str, values: Sequence[int], limit: int, default: int) -> Knob:
    """The values below `limit`, and one at or above it: there all have the same effect."""
    useful = {value for value in values if value < limit} | {default}
    if default < limit:
        useful |= set([value for value in values if value >= limit][:1])
    return Knob(name, {str(value): {name: value} for value in sorted(useful)}, str(default), ordered=True)


def _budgets(base: EngineConfig, slo: Slo) -> Knob:
    target = 500 * slo.itl
    values: dict[str, dict[str, Any]] = {
        "adaptive": {"token_budget": "adaptive"},
        f"adaptive, target_itl_ms={target:g}": {"token_budget": "adaptive", "target_itl_ms": target},
        "fixed": {"token_budget": "fixed"},
    }
    return Knob("token_budget", values, base.token_budget)


def _policies(base: EngineConfig, requests: Sequence[Arrival], slo: Slo) -> Knob:
    values: dict[str, dict[str, Any]] = {
        "fcfs": {"scheduling_policy": "fcfs"},
        "sjf": {"scheduling_policy": "sjf"},
        "slo": {"scheduling_policy": "slo", "target_ttft_ms": 1000 * slo.ttft},
    }
    levels = {request.priority for request in requests}
    if len(levels) > 1 and min(levels) > 0:
        both = {"priority_levels": max(levels), "default_priority_level": max(levels)}
        values["priority"] = {"scheduling_policy": "priority", **both}
    if len({request.tenant for request in requests}) > 1:
        values["fair"] = {"scheduling_policy": "fair"}
    return Knob("scheduling_policy", values, base.scheduling_policy)


def _thresholds(base: EngineConfig, longest_prompt: int) -> Knob:
    name, default = "long_prefill_token_threshold", base.long_prefill_token_threshold
    values = {default, PREFILL_THRESHOLD} if longest_prompt > PREFILL_THRESHOLD else {default}
    return Knob(name, {str(value): {name: value} for value in sorted(values)}, str(default))


def _admissions(base: EngineConfig, requests: Sequence[Arrival], at_once: int) -> Knob:
    assert base.kv_cache_tokens is not None
    name, default = "batch_scheduler_policy", base.batch_scheduler_policy
    lengths = sorted(request.prompt_tokens + request.max_tokens for request in requests)
    fits = sum(lengths[-min(at_once, SEQS[-1]) :]) <= base.kv_cache_tokens
    values = [default] if fits else ["max_utilization", "guaranteed_no_evict", "future_peak"]
    return Knob(name, {value: {name: value} for value in values}, default)
