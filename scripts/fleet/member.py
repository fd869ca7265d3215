"""One server of a fleet, as load balancers know it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """A Triton server with its gateway on one host."""

    name: str
    host: str
    http_port: int = 8000
    """Of Triton, for health checks."""
    grpc_port: int = 8001
    metrics_port: int = 8002
    gateway_port: int = 9000
    agent_port: int = 9100
    """Of `inflight agent-check`."""


EXAMPLE = [Member(f"llm-{number}", f"llm-{number}") for number in (1, 2, 3)]
"""The hosts of the files in deploy/balancers."""
