"""`make bench-mixed`: how evenly tokens arrive while long prompts are computed.

Users hold streams that decode. After a while another client sends a prompt of 500 tokens each second. A server is
started for each token budget: fixed ones, and the adaptive one of config.pbtxt, which limits the prompt tokens in a
step so that the decodes keep their pace. Gaps are the times between two pieces of a user's answer.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from tqdm import tqdm

from inflight_client import InflightError
from load_tests.bench.requests import check_complete, warm_up_requests
from load_tests.endpoints import grpc_endpoint
from load_tests.generator import closed_loop, open_loop
from load_tests.prompts import PlannedRequest
from load_tests.records import Record
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.launch.signals import end_like_ctrl_c

USERS = 32
USER_TOKENS = 900
STORY, PROMPT = "story", "prompt"
PROMPTS = 12
PROMPT_TOKENS = 500
FIRST_PROMPT_AT, LAST_PROMPT_AT = 10.0, 10.0 + PROMPTS - 1
# Time after the last prompt is due. Then the streams of the users are cancelled.
END_SECONDS = 10.0
BUDGETS: tuple[Mapping[str, str], ...] = (
    {},
    {"token_budget": "fixed"},
    {"token_budget": "fixed", "max_num_batched_tokens": "256"},
)


def requests() -> list[PlannedRequest]:
    """The requests that the users send at the start, and the prompts that follow later."""
    stories = [PlannedRequest(0.0, 8, USER_TOKENS, USER_TOKENS, kind=STORY, seed=seed) for seed in range(USERS)]
    times = np.linspace(FIRST_PROMPT_AT, LAST_PROMPT_AT, PROMPTS).tolist()
    prompts = [
        PlannedRequest(at, PROMPT_TOKENS, 2, 2, kind=PROMPT, seed=seed) for seed, at in enumerate(times, start=USERS)
    ]
    return [*stories, *prompts]


@dataclass(frozen=True)
class Evenness:
    """Seconds between pieces before, after and while prompts are computed, and the prompts' times to first token."""

    before: list[float]
    after: list[float]
    during: list[float]
    first_tokens: list[float]

    @property
    def alone(self) -> list[float]:
        return self.before + self.after

    @property
    def alone_p50(self) -> float:
        """The median gap without prompts, for the contexts that the users have while prompts are computed.

        Steps take longer as the users' texts grow. So it lies in the middle between the medians before and after.
        """
        return float(np.median(self.before) + np.median(self.after)) / 2


def evenness(records: Sequence[Record]) -> Evenness:
    """Analyse a run. Raises RuntimeError if a prompt failed or a user's stream ended before the prompts did."""
    stories = [record for record in records if record.kind == STORY]
    prompts = [record for record in records if record.kind == PROMPT]
    if any(not record.done for record in prompts):
        raise RuntimeError(f"prompts failed: {sorted({record.error for record in prompts if record.error})}")
    began, ended = FIRST_PROMPT_AT, max(record.last_token or 0.0 for record in prompts)
    if any(record.last_token is None or record.last_token < ended for record in stories):
        raise RuntimeError("a user's stream ended before the prompts did")
    settled = max(record.first_token or 0.0 for record in stories)
    pairs = [pair for record in stories for pair in pairwise(_times(record))]
    before = [b - a for a, b in pairs if settled <= a and b < began]
    after = [b - a for a, b in pairs if ended < a]
    during = [b - a for a, b in pairs if began < a and b < ended]
    return Evenness(before, after, during, [(record.first_token or 0.0) - record.scheduled for record in prompts])


def _times(record: Record) -> Iterator[float]:
    return accumulate(record.gaps, initial=record.first_token or 0.0)


async def run(url: str) -> Evenness:
    """Send the requests to a server."""
    async with grpc_endpoint(url) as endpoint:
        check_complete(await closed_loop(endpoint, 1, iter(warm_up_requests(1)), count=1))
        found = await open_loop(endpoint, requests(), drain=END_SECONDS)
    return evenness(found.records)


def measure(settings: Mapping[str, str]) -> str:
    """Start a server with some settings and return its line of the table."""
    with triton_server(default_model(), max_num_seqs=str(USERS + PROMPTS), **settings) as server:
        found = asyncio.run(run(server.grpc_url))
    p50, p99 = 1000 * found.alone_p50, 1000 * np.percentile(found.during, 99)
    name = ", ".join(f"{key} {value}" for key, value in settings.items()) or "config.pbtxt"
    return (
        f"| {name} | {p50:.0f} | {1000 * np.percentile(found.alone, 99):.0f} | {1000 * np.median(found.during):.0f} "
        f"| {p99:.0f} | {p99 / p50:.1f} | {np.median(found.first_tokens):.2f}, {max(found.first_tokens):.2f} |"
    )


def main() -> int:
    """Measure all budgets, print a Markdown table and return the exit status."""
    end_like_ctrl_c()
    try:
        lines = [measure(settings) for settings in tqdm(BUDGETS, desc="budgets", unit="server")]
    except KeyboardInterrupt:
        return 130
    except (LauncherError, RuntimeError, InflightError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print("| Budget | Gap p50 alone (ms) | p99 alone | p50 with prompts | p99 with prompts | p99 to p50 alone ", end="")
    print("| Prompts' first token p50, worst (s) |\n|---|---:|---:|---:|---:|---:|---:|")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
