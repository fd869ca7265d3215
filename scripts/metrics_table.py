"""Prints docs/metrics.md: `python -m scripts.metrics_table > docs/metrics.md`."""

from inflight.metric_families import COMMON_LABELS, FAMILIES, Family
from inflight.metrics import FILLED_BOUNDS

_HEAD = """# Metrics

The model shows these on Triton's own `/metrics`, brought up to date twice a second. Every one has the labels
{labels}. Names are vLLM's where vLLM has such a metric.
Counters begin at 0 when the model is loaded; when it is unloaded, its metrics go.

This page is printed by `python -m scripts.metrics_table`.

| metric | kind | label | meaning |
|---|---|---|---|
"""
_BUCKETS = """
Triton calls `_bucket`, `_sum` and `_count` of {filled} counters.
They are those of histograms that the engine fills itself, as of steps and tokens there are too many to hand them to
Triton one by one. `histogram_quantile` and all else in PromQL takes them for any others.

## Buckets

| histogram | upper bounds |
|---|---|
"""


def metrics_page() -> str:
    """The whole of docs/metrics.md."""
    rows = "".join(_row(family) for family in FAMILIES)
    buckets = "".join(
        f"| `{family.name}` | {', '.join(f'{bound:g}' for bound in family.buckets)} |\n"
        for family in FAMILIES
        if family.buckets
    )
    filled = ", ".join(f"`{family.name}`" for family in FAMILIES if family.observes in FILLED_BOUNDS)
    labels = ", ".join(f"`{label}`" for label in COMMON_LABELS)
    return _HEAD.format(labels=labels) + rows + _BUCKETS.format(filled=filled) + buckets


def _row(family: Family) -> str:
    label = f"`{family.label}`" if family.label else ""
    return f"| `{family.name}` | {family.kind} | {label} | {family.help} |\n"


if __name__ == "__main__":
    print(metrics_page(), end="")
