"""The configuration of HAProxy for a fleet."""

from collections.abc import Sequence

from scripts.fleet.member import Member


def haproxy_config(members: Sequence[Member], *, grpc_bind: str, http_bind: str) -> str:
    """Return haproxy.cfg. It balances KServe's gRPC at one address, and OpenAI's API of the gateways at another."""
    grpc = "\n".join(_grpc_server(member) for member in members)
    http = "\n".join(_http_server(member) for member in members)
    return f"""\
# HAProxy 2.6 and later. Made by `python -m scripts.fleet.configs`.
global
    maxconn 4096
    # A request that fits is sent again to another server if the first one fails before its answer begins.
    tune.bufsize 65536
    log stdout format raw local0 notice

defaults
    mode http
    log global
    balance leastconn
    timeout connect 2s
    # Also the longest time between two tokens.
    timeout client 10m
    timeout server 10m
    timeout http-request 30s
    retries 3
    option redispatch 1
    retry-on conn-failure empty-response 503
    # A server that is found to be down gets nothing more, and its connections are closed.
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions

# KServe's protocol over gRPC, such as that of tritonclient: each request is balanced, whatever connection it is on.
frontend grpc
    bind {grpc_bind} proto h2
    default_backend grpc

backend grpc
    # Triton's own health says little before 26.01, so `inflight agent-check` asks the model. It sets weights, too.
    option httpchk GET /v2/health/ready
{grpc}

# OpenAI's API.
frontend openai
    bind {http_bind}
    default_backend openai

backend openai
    # Any answer will do, and it may take long: a failed check ends all answers of the gateway. So it does not ask for
    # /health, which fails while the model drains.
    option httpchk GET /server_info
    http-check expect rstatus .
    timeout check 5s
{http}
"""


_OF_ALL = "init-addr last,libc,none weight 100 agent-check agent-inter 1s agent-port"


def _grpc_server(member: Member) -> str:
    check = f"proto h2 check port {member.http_port} check-proto h1"
    return f"    server {member.name} {member.host}:{member.grpc_port} {check} {_OF_ALL} {member.agent_port}"


def _http_server(member: Member) -> str:
    return f"    server {member.name} {member.host}:{member.gateway_port} check {_OF_ALL} {member.agent_port}"
