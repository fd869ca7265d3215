"""Counts of tokens."""

from collections.abc import Sequence

from inflight_client import PerfMetrics, Usage
from inflight_gateway.responses import UsageCount


def usage_count(usage: Usage, perf: Sequence[PerfMetrics] | None = None) -> UsageCount:
    """Return the usage in OpenAI's format. `perf`: what the server did for the answers, if they were predicted."""
    count: UsageCount = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if perf is not None:
        drafted = sum(answer.total_draft_tokens for answer in perf)
        accepted = sum(answer.total_accepted_draft_tokens for answer in perf)
        count["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return count


def total(usages: list[Usage]) -> Usage:
    """Return the sum of the usage of several prompts."""
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
    )
