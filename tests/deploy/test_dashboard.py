"""Every query of the dashboard, the rules and the autoscaler names metrics that exist, and finds them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from inflight.metric_families.families import FAMILIES
from inflight.metric_families.family import COMMON_LABELS, HISTOGRAM
from inflight_gateway.metrics import Metrics
from tests.deploy.conftest import DEPLOY, PROMETHEUS, SCRAPE_SECONDS, Promtool, Render, promtool_test, recorded

DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
# What Prometheus adds to each series. The model's own `instance` becomes `exported_instance`.
OF_TARGETS = {"job", "instance", "exported_instance", "namespace", "pod"}


def rules() -> list[Mapping[str, str]]:
    files = [yaml.safe_load((PROMETHEUS / name).read_text()) for name in ("rules.yaml", "alerts.yaml")]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def of_dashboard() -> list[str]:
    """Its queries, with what Grafana puts in."""
    targets = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return [target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m") for target in targets]


def known() -> dict[str, set[str]]:
    """The labels of each metric that the model, the gateway or a rule makes."""
    found: dict[str, set[str]] = {"up": set()}
    for family in FAMILIES:
        labels = {*COMMON_LABELS, *([family.label] if family.label else [])}
        found |= dict.fromkeys(expanded(family.name, family.kind), labels)
    for metric in Metrics().registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        found |= {series: {"endpoint", "status", "kind"} for series in expanded(name, metric.type)}
    return found | {rule["record"]: {"model", "status"} for rule in rules() if "record" in rule}


def expanded(name: str, kind: str) -> list[str]:
    """The series of a metric."""
    return [f"{name}_{part}" for part in ("bucket", "count", "sum")] if kind == HISTOGRAM else [name]


def nodes(query: str) -> list[Any]:
    """All parts of a query. Raises ValueError if it is not PromQL."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(query), pre_visit=found.append)
    return found


def selectors(query: str) -> list[Any]:
    found = [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]
    found += [node.vector_selector for node in nodes(query) if isinstance(node, promql_parser.MatrixSelector)]
    assert found, f"{query} reads nothing"
    return found


def test_queries_name_metrics_and_labels_that_exist(render: Render) -> None:
    scaled = render("--set=autoscaling.enabled=true")["ScaledObject"]
    of_autoscaler = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    labels = known()
    for query in (*of_dashboard(), *(rule["expr"] for rule in rules()), *of_autoscaler):
        there = OF_TARGETS | {"le"}
        for selector in selectors(query):
            assert selector.name in labels, f"{query}: no metric {selector.name}"
            matched = {matcher.name for matcher in selector.matchers.matchers}
            assert matched <= labels[selector.name] | OF_TARGETS, f"{query}: no label of {matched}"
            there |= labels[selector.name]
        for node in nodes(query):
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                assert set(node.modifier.labels) <= there, f"{query}: no label of {node.modifier.labels}"


def test_every_recorded_rule_is_used() -> None:
    queries = [*of_dashboard(), *(rule["expr"] for rule in rules() if "alert" in rule)]
    read = {selector.name for query in queries for selector in selectors(query)}
    assert {rule["record"] for rule in rules() if "record" in rule} <= read


def test_each_query_of_the_dashboard_finds_the_series_of_a_real_server(promtool: Promtool, tmp_path: Path) -> None:
    series, last = recorded()
    at = f"{last['overload'] * SCRAPE_SECONDS}s"
    # `absent` has a sample if, and only if, the query has none.
    tests = [{"eval_time": at, "expr": f"absent({query})", "exp_samples": []} for query in of_dashboard()]
    promtool("test", "rules", promtool_test(tmp_path, series, tests))


def test_panels_do_not_overlap_and_read_the_chosen_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * len(sources)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
