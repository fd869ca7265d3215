"""Alerts fire when they should, and only then: on series that were made up, and on those of a real server."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from tests.deploy.conftest import DEPLOY, PROMETHEUS, SCRAPE_SECONDS, Promtool, promtool_test, recorded

ALERTS = {
    rule["alert"]: rule for rule in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"][0]["rules"]
}
SECTION = re.compile(r'docs/([\w-]+\.md), "([^"]+)"')

SERVER = 'job="inflight",instance="a"'
MODEL = f'{SERVER},exported_instance="llm_0_0",model="llm",version="1"'
REQUESTS = f'inflight_gateway_requests_total{{{SERVER},endpoint="/v1/completions"'
# An hour of a server without faults, one value each 15 s.
HEALTHY = {
    f"up{{{SERVER}}}": "1+0x240",
    f"inflight_gateway_model_metrics_up{{{SERVER}}}": "1+0x240",
    f"inflight:last_update_time_seconds{{{MODEL}}}": "0+15x240",
    f"inflight:start_time_seconds{{{MODEL}}}": "5+0x240",
    f"inflight:num_requests_running{{{MODEL}}}": "5+0x240",
    f"inflight:num_requests_waiting{{{MODEL}}}": "0+0x240",
    f'inflight:computed_tokens_total{{{MODEL},kind="decode"}}': "0+150x240",
    f'inflight:computed_tokens_total{{{MODEL},kind="prefill"}}': "0+0x240",
    f"inflight:step_budget_tokens_total{{{MODEL}}}": "0+1500x240",
    f"inflight:num_preemptions_total{{{MODEL}}}": "0+1x240",
    f'inflight:request_success_total{{{MODEL},finished_reason="stop"}}': "0+10x240",
    f'{REQUESTS},status="200"}}': "0+1000x240",
    f'{REQUESTS},status="429"}}': "0+40x240",
    f'{REQUESTS},status="503"}}': "0+9x240",
    f'inflight:time_to_first_token_seconds_bucket{{{MODEL},le="5.0"}}': "0+1000x240",
    f'inflight:time_to_first_token_seconds_bucket{{{MODEL},le="10.0"}}': "0+1000x240",
    f'inflight:time_to_first_token_seconds_bucket{{{MODEL},le="+Inf"}}': "0+1000x240",
    f'inflight:inter_token_latency_seconds_bucket{{{MODEL},le="0.5"}}': "0+1000x240",
    f'inflight:inter_token_latency_seconds_bucket{{{MODEL},le="1.0"}}': "0+1000x240",
    f'inflight:inter_token_latency_seconds_bucket{{{MODEL},le="+Inf"}}': "0+1000x240",
}
# What differs from it, if something is wrong from the 20th minute on.
FAULTS = {
    "InflightDown": {f"up{{{SERVER}}}": "1+0x79 0+0x160"},
    "InflightModelNotServing": {
        series: values.split("x")[0] + "x79 stale"
        for series, values in HEALTHY.items()
        if series.startswith("inflight:")
    },
    "InflightServerNotServing": {
        f'inflight_gateway_server_metrics_up{{{SERVER},server="x:8002"}}': "1+0x240",
        f'inflight:last_update_time_seconds{{{MODEL},server="x:8002"}}': "0+15x240",
        f'inflight_gateway_server_metrics_up{{{SERVER},server="y:8002"}}': "1+0x79 0+0x160",
        f'inflight:last_update_time_seconds{{{MODEL},server="y:8002"}}': "0+15x79 stale",
    },
    "InflightStalled": {f'inflight:computed_tokens_total{{{MODEL},kind="decode"}}': "0+150x80 12000+0x160"},
    # Each time in its first step, so that nothing was counted.
    "InflightRestarts": {
        f"inflight:start_time_seconds{{{MODEL}}}": "5+0x80 " + " ".join(f"{at}+0x9" for at in range(1200, 3600, 150)),
        f"inflight:step_budget_tokens_total{{{MODEL}}}": "0+0x240",
    },
    "InflightErrors": {f'{REQUESTS},status="503"}}': "0+9x80 720+12x160"},
    "InflightRefusing": {f'{REQUESTS},status="429"}}': "0+40x80 3200+80x160"},
    "InflightQueueNeverEmpty": {f"inflight:num_requests_waiting{{{MODEL}}}": "0+0x79 1+0x160"},
    "InflightFirstTokenSlow": {
        f'inflight:time_to_first_token_seconds_bucket{{{MODEL},le="5.0"}}': "0+1000x80 80000+980x160"
    },
    "InflightTokensSlow": {
        f'inflight:inter_token_latency_seconds_bucket{{{MODEL},le="0.5"}}': "0+1000x80 80000+980x160"
    },
    "InflightCacheThrashing": {f"inflight:num_preemptions_total{{{MODEL}}}": "0+1x80 80+8x160"},
}
# What else is true then: without its process, the model's metrics are missing.
OLD_METRICS = {f"inflight:last_update_time_seconds{{{MODEL}}}": "0+15x80 1200+0x160"}


Fires = Callable[[Mapping[str, str], Mapping[int, set[str]]], None]


@pytest.fixture
def fires(promtool: Promtool, tmp_path: Path) -> Fires:
    """Checks which alerts fire on series, by the number of the sample."""

    def check(series: Mapping[str, str], expected: Mapping[int, set[str]]) -> None:
        tests = [
            {
                "eval_time": f"{at * SCRAPE_SECONDS}s",
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names],
            }
            for at, names in expected.items()
        ]
        promtool("test", "rules", promtool_test(tmp_path, series, tests))

    return check


def test_configuration_is_valid(promtool: Promtool) -> None:
    assert "FAILED" not in promtool("check", "config", PROMETHEUS / "prometheus.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_fires_on_its_fault_alone(alert: str, fires: Fires) -> None:
    series = {**HEALTHY, **FAULTS[alert]}
    fires(series, {79: set(), 130: {alert}})


def test_a_queue_at_the_start_of_a_server_is_no_queue_that_never_ends(fires: Fires) -> None:
    waiting = f"inflight:num_requests_waiting{{{MODEL}}}"
    fires({**HEALTHY, waiting: "_x40 5+0x20 0+0x180"}, {41: set(), 45: set(), 60: set()})


def test_routers_that_look_at_the_load_are_no_users(fires: Fires) -> None:
    polls = f'inflight_gateway_requests_total{{{SERVER},endpoint="/v1/loads"'
    many, failing = {f'{polls},status="200"}}': "0+15000x240"}, {f'{polls},status="503"}}': "0+15000x240"}
    series = {**HEALTHY, **FAULTS["InflightRefusing"]}
    fires({**series, **many}, {79: set(), 130: {"InflightRefusing"}})
    fires({**HEALTHY, **failing}, {130: set()})


def test_a_preemption_while_no_request_ends_is_no_thrashing(fires: Fires) -> None:
    ended = f'inflight:request_success_total{{{MODEL},finished_reason="stop"}}'
    fires({**HEALTHY, ended: "0+10x80 800+0x160"}, {79: set(), 130: set()})


def test_old_metrics_are_a_stall(fires: Fires) -> None:
    fires({**HEALTHY, **OLD_METRICS}, {79: set(), 90: {"InflightStalled"}})


def test_a_real_server_under_a_light_load_raises_no_alert(fires: Fires) -> None:
    series, last = recorded()
    fires(series, {last["idle"]: set(), last["light"]: set()})


def test_a_real_server_with_too_much_load_raises_the_alerts_about_it(fires: Fires) -> None:
    series, last = recorded()
    expected = {"InflightFirstTokenSlow", "InflightTokensSlow", "InflightRefusing"}
    # Preemptions began later. Then the model's process was killed, while rates still remember the load.
    later = {*expected, "InflightCacheThrashing", "InflightModelNotServing"}
    fires(series, {last["overload"]: expected, last["killed"]: later})


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_says_where_to_read_on(alert: str) -> None:
    description = ALERTS[alert]["annotations"]["description"]
    sections = SECTION.findall(description)
    assert sections or "docs/" in description
    for page, heading in sections:
        headings = re.findall(r"^#+ (.+)$", (DEPLOY.parent / "docs" / page).read_text(), re.MULTILINE)
        assert heading in headings
