"""The configuration of nginx for a fleet."""

from collections.abc import Collection, Sequence

from scripts.fleet.member import Member


def nginx_config(
    members: Sequence[Member], leaving: Collection[Member] = (), /, *, grpc_bind: str, http_bind: str
) -> str:
    """Return nginx.conf. It balances KServe's gRPC at one address, and OpenAI's API of the gateways at another.

    Those of the members that are `leaving` get no new gRPC requests.
    """
    grpc = "\n".join(
        f"        {_server(member.host, member.grpc_port)}{' down' if member in leaving else ''};" for member in members
    )
    http = "\n".join(f"        {_server(member.host, member.gateway_port)};" for member in members)
    return f"""\
# nginx 1.22 and later. Made by `python -m scripts.fleet.configs`.
# The open version has no health checks of its own: a server is left out after a request to it has failed.
# Before you restart a server, write `down` behind it in the upstream `grpc`, and run `nginx -s reload`.
worker_processes auto;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_max_body_size 8m;
    # So a request that fails before its answer begins can be sent to another server.
    client_body_buffer_size 8m;

    upstream grpc {{
        zone grpc 64k;
        least_conn;
{grpc}
    }}

    upstream openai {{
        zone openai 64k;
        least_conn;
{http}
        keepalive 64;
    }}

    # KServe's protocol over gRPC: each request is balanced, whatever connection it is on.
    server {{
        listen {grpc_bind} http2;
        location / {{
            grpc_pass grpc://grpc;
            # A client may send all its requests on one stream, and wait long between them.
            client_max_body_size 0;
            client_body_timeout 10m;
            grpc_connect_timeout 2s;
            # Also the longest time between two tokens.
            grpc_read_timeout 10m;
            grpc_next_upstream error timeout http_503 non_idempotent;
        }}
    }}

    # OpenAI's API.
    server {{
        listen {http_bind};
        location / {{
            proxy_pass http://openai;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            # Pass tokens on as they come.
            proxy_buffering off;
            proxy_connect_timeout 2s;
            proxy_read_timeout 10m;
            proxy_next_upstream error timeout http_503 non_idempotent;
        }}
    }}
}}
"""


def _server(host: str, port: int) -> str:
    return f"server {host}:{port} max_fails=1 fail_timeout=2s"
