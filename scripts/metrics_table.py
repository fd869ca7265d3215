"""Prints docs/metrics.md: `python -m scripts.metrics_table > docs/metrics.md`."""

from inflight.metric_families import COMMON_LABELS, FAMILIES, TOKEN_GAPS, Family

_HEAD = """# Metrics

The model shows these on Triton's own `/metrics`, brought up to date twice a second. Every one has the labels
{labels}. Names are vLLM's where vLLM has such a metric.
Counters begin at 0 when the model is loaded; when it is unloaded, its metrics go.

This page is printed by `python -m scripts.metrics_table`.

| metric | kind | label | meaning |
|---|---|---|---|
"""
_BUCKETS = """
Triton calls `{token_gaps}_bucket`, `_sum` and `_count` counters. They are those of a histogram
that the engine fills itself, as its values are too many to hand them to Triton one by one. `histogram_quantile` and all
else in PromQL takes it for any other.

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
    labels = ", ".join(f"`{label}`" for label in COMMON_LABELS)
    return _HEAD.format(labels=labels) + rows + _BUCKETS.format(token_gaps=TOKEN_GAPS) + buckets


def _row(family: Family) -> str:
    label = f"`{family.label}`" if family.label else ""
    return f"| `{family.name}` | {family.kind} | {label} | {family.help} |\n"


if __name__ == "__main__":
    print(metrics_page(), end="")
