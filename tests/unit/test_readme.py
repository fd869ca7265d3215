"""The pages outside the site of `make docs`, whose links nothing else checks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "docker/README.md"])
def test_links_lead_to_files(page: str) -> None:
    path = ROOT / page
    links = _LINK.findall(path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).is_file()] == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180
