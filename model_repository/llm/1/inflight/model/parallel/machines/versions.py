"""What must be the same on all machines of a model."""

import platform
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

_PACKAGE = Path(__file__).parents[3]


@cache
def versions() -> dict[str, str]:
    """The versions of what computes on this machine."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, **{name: version(name) for name in ("torch", "transformers")}, "Inflight": _code()}


def difference(theirs: object) -> str:
    """Say in what another machine's versions differ from this one's; empty if in nothing."""
    if not isinstance(theirs, Mapping):
        return "it does not say which versions it has"
    return "; ".join(
        f"{name} is {theirs.get(name)!r} there and {ours!r} at rank 0"
        for name, ours in versions().items()
        if theirs.get(name) != ours
    )


def _code() -> str:
    found = blake2b(digest_size=8)
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in (".py", ".cpp", ".h"):
            found.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes())
    return found.hexdigest()
