"""The machine seconds that each tenant used."""

from dataclasses import dataclass

from inflight.scheduler.committed import Committed
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.step_time import attention_pairs

OTHERS = "(others)"
"""The account of all tenants after the first `MAX_TENANTS`: each is several metrics."""
MAX_TENANTS = 100


@dataclass(slots=True)
class TenantUse:
    """What a tenant used since the engine's start."""

    prompt_seconds: float = 0.0
    """Machine seconds for its prompts, and for tokens computed again after a preemption."""
    output_seconds: float = 0.0
    """Machine seconds for its output tokens after the first of each request."""
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def seconds(self) -> float:
        """Machine seconds in all."""
        return self.prompt_seconds + self.output_seconds

    def __add__(self, other: "TenantUse") -> "TenantUse":
        return TenantUse(
            self.prompt_seconds + other.prompt_seconds,
            self.output_seconds + other.output_seconds,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
        )


class TenantCosts:
    """Splits the seconds of each step among the tenants of its requests."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, TenantUse] = {}

    def _use_of(self, tenant: str) -> TenantUse:
        use = self.by_tenant.get(tenant)
        if use is None:
            if len(self.by_tenant) >= MAX_TENANTS:
                tenant = OTHERS
            use = self.by_tenant.setdefault(tenant, TenantUse())
        return use

    def charge(self, plan: StepPlan, coefficients: tuple[float, float, float, float], seconds: float) -> None:
        """Split a step's seconds in proportion to what the step-time model says that each request adds.

        `coefficients` are those of `StepTimeModel`. Its time per step is shared equally. If all are 0, tokens count.
        """
        per_step, per_token, per_cached, per_pair = coefficients
        if not any(coefficients):
            per_token = 1.0
        fixed = per_step / max(1, len(plan.scheduled))
        weights = [
            fixed
            + per_token * len(each.token_ids)
            + per_cached * each.first
            + per_pair * attention_pairs(each.first, len(each.token_ids))
            for each in plan.scheduled
        ]
        scale = seconds / (sum(weights) or 1.0)
        for each, weight in zip(plan.scheduled, weights, strict=True):
            request = each.request
            use = self._use_of(request.tenant)
            if each.begins:
                use.prompt_tokens += len(request.prompt_ids)
            if each.last_token_at is not None and request.decodes:
                use.output_seconds += weight * scale
            else:
                use.prompt_seconds += weight * scale

    def committed(self, outcomes: list[Committed]) -> None:
        """Count the new tokens of a step."""
        for outcome in outcomes:
            self._use_of(outcome.request.tenant).output_tokens += outcome.num_generated
