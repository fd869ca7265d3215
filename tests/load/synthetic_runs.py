"""Runs of one request for tests without a server."""

from load_tests.records import Record, Run


def run_of(tokens: int, error: str | None = None) -> Run:
    record = Record(
        index=0,
        kind="chat",
        tenant="",
        priority=0,
        prompt_tokens=10,
        max_tokens=tokens,
        target_ttft=None,
        scheduled=0.0,
        sent=0.0,
        first_token=0.5,
        last_token=1.0,
        output_tokens=tokens,
        gaps=(0.5 / tokens,) * tokens,
        error=error,
    )
    return Run([record], 0.1)
