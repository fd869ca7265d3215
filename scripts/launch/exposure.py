"""Who can reach which interface of Triton. docs/security.md has the reasons."""

import ipaddress
from collections.abc import Sequence

from scripts.launch.errors import LauncherError

OPERATOR_HEADER = "inflight-operator"
"""The header that holds the operator's key; over gRPC, `triton-grpc-protocol-` precedes its name."""

# They name files on the server, load code into it, or give access to its memory. No client of ours uses them.
_OPERATORS_ONLY = "shared-memory,trace,logging,model-repository"
_ADDRESSES = ("--http-address", "--grpc-address", "--metrics-address")
_OTHER_FRONTENDS = ("--allow-sagemaker", "--allow-vertex-ai")


def restrict(operator_key: str) -> list[str]:
    """Return tritonserver's arguments that open the operator's interfaces only to those who know the key."""
    rule = f"{_OPERATORS_ONLY}:{OPERATOR_HEADER}={operator_key}"
    return [f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}"]


def check_loopback(arguments: Sequence[str]) -> None:
    """Check that tritonserver, with these arguments, can be reached only from this host.

    Raises LauncherError, which names the argument.
    """
    for index, argument in enumerate(arguments):
        option, separator, value = argument.partition("=")
        if not separator and index + 1 < len(arguments):
            value = arguments[index + 1]
        # Like getopt_long, tritonserver takes any beginning of an option that no other option has.
        if len(option) <= len("--"):
            continue
        if any(known.startswith(option) for known in _ADDRESSES) and not _is_loopback(value):
            raise _exposed(f"{option} {value}")
        if any(known.startswith(option) for known in _OTHER_FRONTENDS):
            raise _exposed(option)


def _exposed(argument: str) -> LauncherError:
    return LauncherError(
        f"ARGS has {argument}: this release of Triton, 24.10, has known holes that let whoever reaches it run code; "
        "serve others through the gateway, use a newer release (docs/deploying.md), or set ALLOW_EXPOSED_TRITON=1"
    )


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # Another host name, which may resolve to any address.
        return False
