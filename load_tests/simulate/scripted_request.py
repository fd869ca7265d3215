"""Requests with predetermined output lengths, which the scheduler does not know."""

from dataclasses import dataclass

from inflight import RequestOptions, SamplingParams
from inflight.request import STOP, Request
from load_tests.traffic import Arrival

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)

# Tokens that make prompts distinct are below this. Every vocabulary has about 20,000 tokens.
_LAST_TOKEN = 20_000


@dataclass(eq=False, slots=True)
class ScriptedRequest(Request):
    """Ends after the number of tokens that the traffic sets, as if an end-of-sequence token had been sampled then."""

    index: int = 0
    """Its index in the traffic."""
    ends_at: int = 0
    """Total number of prompt and output tokens at the end."""

    def finish_reason(self, token: int) -> str | None:
        """Return the reason at the scripted end, which comes at `max_tokens` or before."""
        return STOP if len(self.token_ids) >= self.ends_at else None


def scripted_request(arrival: Arrival, index: int, origin: float, *, distinct: bool) -> ScriptedRequest:
    """The request for an arrival.

    Args:
        arrival: the arrival.
        index: index of the request in the traffic.
        origin: start of the traffic in seconds, on the requests' clock.
        distinct: whether prompts without a shared prefix must differ. Only the prefix cache needs that.
    """
    return ScriptedRequest(
        request_id=str(index),
        prompt_ids=_prompt_ids(arrival, index) if distinct else [0] * arrival.prompt_tokens,
        params=GREEDY,
        max_tokens=arrival.max_tokens,
        seed=0,
        arrival=origin + arrival.at,
        options=RequestOptions(
            priority=arrival.priority,
            tenant=arrival.tenant,
            target_ttft_ms=None if arrival.target_ttft is None else max(1, round(1000 * arrival.target_ttft)),
        ),
        priority=arrival.priority,
        index=index,
        ends_at=arrival.prompt_tokens + arrival.output_tokens,
    )


def _prompt_ids(arrival: Arrival, index: int) -> list[int]:
    # Two tokens encode the index, so that all prompts differ from there on.
    name = [1 + index % (_LAST_TOKEN - 1), 1 + index // (_LAST_TOKEN - 1)]
    own = arrival.prompt_tokens - arrival.prefix_tokens
    return [1 + arrival.prefix_id] * arrival.prefix_tokens + (name + [0] * (own - 2))[:own]
