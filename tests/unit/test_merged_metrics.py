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
