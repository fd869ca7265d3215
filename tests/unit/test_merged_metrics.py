"""The metrics of several servers on one page."""

import pytest

from inflight_client.metrics import parse_metrics
from inflight_gateway.merged_metrics import merged

PAGE = """# HELP inflight:tenant_cost_total What a tenant used.
# TYPE inflight:tenant_cost_total counter
inflight:tenant_cost_total{{model="llm",tenant="{tenant}"}} {value}
"""


@pytest.mark.parametrize("tenant", ["a", "a b", "a\u2028b", "a\x85b", "a\fb", "a\x1cb", "a\rb", "a}} 7"])
def test_a_label_is_kept_whatever_it_holds(tenant: str) -> None:
    page = merged({"one:8002": PAGE.format(tenant=tenant, value=3), "two:8002": PAGE.format(tenant=tenant, value=4)})
    samples = parse_metrics(page).samples
    assert [(sample.labels["tenant"], sample.labels["server"], sample.value) for sample in samples] == [
        (tenant, "one:8002", 3),
        (tenant, "two:8002", 4),
    ]
    assert page.count("# TYPE") == page.count("# HELP") == 1


def test_servers_of_different_versions_share_the_comments_of_the_first() -> None:
    old = PAGE.format(tenant="a", value=3)
    page = merged({"one:8002": old.replace("What a tenant used", "Cost"), "two:8002": old})
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# HELP inflight:tenant_cost_total Cost.",
        "# TYPE inflight:tenant_cost_total counter",
    ]
    assert [sample.value for sample in parse_metrics(page).samples] == [3, 3]


def test_fractions_of_several_instances_are_averaged() -> None:
    page = "".join(f'use{{model="llm",instance="llm_0_{number}"}} 0.5\n' for number in range(2))
    metrics = parse_metrics(page)
    assert metrics.value("use", model="llm") == 1.0
    assert metrics.mean("use", model="llm") == 0.5
    with pytest.raises(KeyError, match="the server has no metric use with the labels"):
        metrics.mean("use", model="other")
