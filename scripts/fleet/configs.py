"""Write deploy/balancers: the configurations for three hosts, from which users start."""

from collections.abc import Mapping
from pathlib import Path

from scripts.fleet.envoy import envoy_config
from scripts.fleet.haproxy import haproxy_config
from scripts.fleet.member import EXAMPLE
from scripts.fleet.nginx import nginx_config

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "balancers"


def configs() -> Mapping[str, str]:
    """Return the files by name."""
    binds = {"grpc_bind": "127.0.0.1:8001", "http_bind": "127.0.0.1:9000"}
    return {
        "haproxy.cfg": haproxy_config(EXAMPLE, **binds),
        "nginx.conf": nginx_config(EXAMPLE, **binds),
        "envoy.yaml": envoy_config(EXAMPLE, **binds),
    }


def main() -> None:
    """Write the files."""
    for name, text in configs().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
