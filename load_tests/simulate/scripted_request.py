"""Requests whose output lengths are known beforehand, to everybody but the scheduler."""

from dataclasses import dataclass

from inflight import RequestOptions, SamplingParams
from inflight.request import STOP, Request
from load_tests.traffic import Arrival

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)

# Tokens that tell prompts apart are below this: some 20,000 tokens every vocabulary has.
_LAST_TOKEN = 20_000


@dataclass(eq=False, slots=True)
class ScriptedRequest(Request):
    """Ends after as many tokens as the traffic says, as if an end-of-sequence token had been sampled then."""

    index: int = 0
    """Its index in the traffic."""
    ends_at: int = 0
    """Tokens of prompt and output together."""

    def finish_reason(self, token: int) -> str | None:
        """The script's end, which comes at `max_tokens` or before."""
        return STOP if len(self.token_ids) >= self.ends_at else None


def scripted_request(arrival: Arrival, index: int, origin: float, *, distinct: bool) -> ScriptedRequest:
    """The request that an arrival stands for.

    Args:
        arrival: what is asked.
        index: of the request in the traffic.
        origin: the second on the requests' clock at which the traffic starts.
        distinct: whether prompts must differ where they share no prefix, which matters to the prefix cache alone.
    """
    return ScriptedRequest(
        request_id=str(index),
        prompt_ids=_prompt_ids(arrival, index) if distinct else [0] * arrival.prompt_tokens,
        params=GREEDY,
        max_tokens=arrival.max_tokens,
        seed=0,
        arrival=origin + arrival.at,
        options=RequestOptions(
            tenant=arrival.tenant,
            target_ttft_ms=None if arrival.target_ttft is None else max(1, round(1000 * arrival.target_ttft)),
        ),
        priority=arrival.priority,
        index=index,
        ends_at=arrival.prompt_tokens + arrival.output_tokens,
    )


def _prompt_ids(arrival: Arrival, index: int) -> list[int]:
    # Two tokens spell the index, so that all prompts differ from there on.
    name = [1 + index % (_LAST_TOKEN - 1), 1 + index // (_LAST_TOKEN - 1)]
    own = arrival.prompt_tokens - arrival.prefix_tokens
    return [1 + arrival.prefix] * arrival.prefix_tokens + (name + [0] * (own - 2))[:own]
