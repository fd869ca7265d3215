"""The metrics of several servers on one page."""

import re
from collections.abc import Mapping

_COMMENT = re.compile(r"# (HELP|TYPE) (\S+)")
_SAMPLE = re.compile(r"([^\s{]+)(?:\{(.*)\})?( .*)", re.DOTALL)


def merged(texts: Mapping[str, str]) -> str:
    """Merge pages in Prometheus's text format. Each sample gets the label `server`, the key of its page.

    The format wants all samples of a family together, and its comments once: those of the first page, where servers of
    different versions have different ones.
    """
    comments: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for server, text in texts.items():
        family = ""
        for line in text.split("\n"):  # A label may hold what else counts as the end of a line.
            if (comment := _COMMENT.match(line)) is not None:
                kind, family = comment.groups()
                comments.setdefault(family, {}).setdefault(kind, line)
            elif (sample := _SAMPLE.match(line)) is not None and not line.startswith("#"):
                name, labels, rest = sample.groups()
                family = family if family and name.startswith(family) else name
                labels = f'{labels},server="{server}"' if labels else f'server="{server}"'
                samples.setdefault(family, []).append(f"{name}{{{labels}}}{rest}")
    lines = [line for family, found in samples.items() for line in (*comments.get(family, {}).values(), *found)]
    return "\n".join([*lines, ""])
