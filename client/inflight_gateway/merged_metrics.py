"""The metrics of several servers on one page."""

import re
from collections.abc import Mapping

_COMMENT = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE = re.compile(r"([^\s{]+)(?:\{(.*)\})?( .*)", re.DOTALL)


def merged(texts: Mapping[str, str]) -> str:
    """Merge pages in Prometheus's text format. Each sample gets the label `server`, the key of its page.

    The format wants all samples of a family together, and its comments once.
    """
    comments: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for server, text in texts.items():
        family = ""
        for line in text.split("\n"):  # A label may hold what else counts as the end of a line.
            if (comment := _COMMENT.match(line)) is not None:
                family = comment[1]
                known = comments.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif (sample := _SAMPLE.match(line)) is not None and not line.startswith("#"):
                name, labels, rest = sample.groups()
                family = family if family and name.startswith(family) else name
                labels = f'{labels},server="{server}"' if labels else f'server="{server}"'
                samples.setdefault(family, []).append(f"{name}{{{labels}}}{rest}")
    lines = [line for family, found in samples.items() for line in (*comments.get(family, ()), *found)]
    return "\n".join([*lines, ""])
