"""The lock file has what pyproject.toml asks for."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from transformers.dependency_versions_table import deps

ROOT = Path(__file__).parents[2]
_PINNED = re.compile(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", re.MULTILINE)


def wanted() -> Iterator[Requirement]:
    for path, extras in (("pyproject.toml", ["tools", "dev"]), ("client/pyproject.toml", ["cli", "gateway"])):
        project = tomllib.loads((ROOT / path).read_text())["project"]
        for text in (*project["dependencies"], *(t for e in extras for t in project["optional-dependencies"][e])):
            yield Requirement(text)


def test_each_dependency_is_locked_within_its_bounds() -> None:
    locked = {
        canonicalize_name(name): version for name, version in _PINNED.findall((ROOT / "requirements.lock").read_text())
    }
    # torch has a build for each kind of device; the projects themselves are installed from here.
    elsewhere = {"torch", "inflight", "inflight-client"}
    missing = [
        str(requirement)
        for requirement in wanted()
        if canonicalize_name(requirement.name) not in elsewhere
        and not requirement.specifier.contains(locked.get(canonicalize_name(requirement.name), "0"))
    ]
    assert missing == [], "run `make lock`"


def test_everything_that_is_locked_has_a_hash() -> None:
    entries = re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 100
    assert all("--hash=sha256:" in entry for entry in entries)


def test_no_dependency_may_be_older_than_transformers_wants() -> None:
    # pip does not check those that are optional for transformers, such as Jinja. With an older one, it refuses chats.
    by_transformers = {canonicalize_name(name): Requirement(text).specifier for name, text in deps.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {canonicalize_name(r.name): r.specifier for r in map(Requirement, project["dependencies"])}
    shared = ours.keys() & by_transformers.keys()
    assert shared >= {"jinja2", "safetensors", "numpy"}
    lowest = {name: bound.version for name in shared for bound in ours[name] if bound.operator in (">=", "==")}
    assert {name for name in shared if not by_transformers[name].contains(lowest[name])} == set()
