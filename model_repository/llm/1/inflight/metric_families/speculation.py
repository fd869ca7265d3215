"""Metrics of speculative decoding."""

from collections.abc import Callable, Mapping

from inflight.metric_families.family import COUNTER, Family
from inflight.stats import EngineStats


def _of_drafts(
    name: str, help: str, read: Callable[[EngineStats], Mapping[str, float]], label: str | None = None
) -> Family:
    """A counter that exists only where drafts are made."""
    return Family(name, COUNTER, help, label, read=lambda stats: read(stats) if stats.accepted_draft_tokens_at else {})


SPECULATION = (
    _of_drafts(
        "inflight:spec_decode_num_drafts_total",
        "Drafts that went through the model: one for each step of a request with drafted tokens. Like the next three, "
        "it exists only with `speculative_config`.",
        lambda s: {"": s.drafts},
    ),
    _of_drafts(
        "inflight:spec_decode_num_draft_tokens_total",
        "Drafted tokens that went through the model.",
        lambda s: {"": s.draft_tokens},
    ),
    _of_drafts(
        "inflight:spec_decode_num_accepted_tokens_total",
        "Drafted tokens that were right. The rate of this metric divided by that of the drafted tokens is the "
        "acceptance rate; divided by the rate of drafts, it is the number of tokens that a draft gains.",
        lambda s: {"": s.accepted_draft_tokens},
    ),
    _of_drafts(
        "inflight:spec_decode_num_accepted_tokens_per_pos_total",
        "Drafted tokens that were right, by their place in the draft, from 0. Requests may ask for longer drafts than "
        "`num_speculative_tokens`; places after that number are not counted here.",
        lambda s: {str(place): count for place, count in enumerate(s.accepted_draft_tokens_at)},
        label="position",
    ),
)
