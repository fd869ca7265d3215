"""The results of the check."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CheckResult:
    """A measured number and the limits that it must keep, if there are any."""

    what: str
    value: float
    unit: str = ""
    min_value: float | None = None
    max_value: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the number is within its limits. NaN is within none."""
        above = self.min_value is None or self.value >= self.min_value
        below = self.max_value is None or self.value <= self.max_value
        return above and below

    @property
    def bar(self) -> str:
        """The limits in words. Empty if there are none."""
        bounds = [("at least", self.min_value), ("at most", self.max_value)]
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


def table(results: Sequence[CheckResult]) -> str:
    """Return a Markdown table."""
    lines = ["| | Found | | Bar | | Note |", "|---|---:|---|---|---|---|"]
    for result in results:
        verdict = ("yes" if result.passed else "**no**") if result.bar else ""
        lines.append(
            f"| {result.what} | {result.value:.4g} | {result.unit} | {result.bar} | {verdict} | {result.note} |"
        )
    return "\n".join(lines)
