"""The configuration of Prometheus for a fleet."""

import json
from collections.abc import Sequence

from scripts.fleet.member import Member


def prometheus_config(members: Sequence[Member]) -> str:
    """Return prometheus.yml, as JSON, which YAML includes. The gateways' metrics have those of their servers."""
    static = [
        {"targets": [f"{member.host}:{member.gateway_port}"], "labels": {"server": member.name}} for member in members
    ]
    scrape = {"job_name": "inflight", "scrape_interval": "2s", "static_configs": static}
    return json.dumps({"global": {"scrape_interval": "2s"}, "scrape_configs": [scrape]}, indent=2)
