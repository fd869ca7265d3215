"""Metrics of tenants: what each has used, and what it costs."""

from collections.abc import Callable

from inflight.metric_families.family import COUNTER, GAUGE, Family
from inflight.tenant_costs import TenantUse


def _of_tenants(name: str, help: str, read: Callable[[TenantUse, float], float]) -> Family:
    """A counter for each tenant, of what it used and of the price of a second."""
    return Family(
        name,
        COUNTER,
        help,
        label="tenant",
        read=lambda s: {tenant: read(use, s.price_per_second) for tenant, use in s.tenants.items()},
    )


TENANTS = (
    _of_tenants(
        "inflight:tenant_machine_seconds_total",
        "Seconds of steps that a tenant's requests used, by the step-time model. The sum over tenants is the time of "
        "all steps; idle time belongs to nobody. After 100 tenants, all others share the account `(others)`. Like the "
        "next four, it exists only with `price_per_hour`.",
        lambda use, _: use.seconds,
    ),
    _of_tenants("inflight:tenant_cost_total", "What these seconds cost.", lambda use, price: use.seconds * price),
    _of_tenants(
        "inflight:tenant_prompt_tokens_total",
        "Prompt tokens of a tenant's requests that have begun.",
        lambda use, _: use.prompt_tokens,
    ),
    _of_tenants(
        "inflight:tenant_generation_tokens_total",
        "Tokens that a tenant's requests generated. Each beam of a search counts, as do tokens after a stop string.",
        lambda use, _: use.output_tokens,
    ),
    Family(
        "inflight:cost_per_thousand_tokens",
        GAUGE,
        "What 1,000 tokens have cost since the start: `prompt` tokens, `output` tokens, and all steps for 1,000 output "
        "tokens (`total`).",
        label="kind",
        read=lambda s: s.cost_per_thousand_tokens,
    ),
)
