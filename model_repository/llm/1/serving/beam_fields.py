"""Reads how many beams a request wants, and refuses what does not go together with a beam search."""

from collections.abc import Mapping
from typing import Any

from inflight import InvalidRequest
from serving.output_options import OutputOptions


def beam_width(fields: Mapping[str, Any]) -> int:
    """Return the number of beams; 1 means no beam search.

    Raises:
        InvalidRequest: `use_beam_search` comes without a number, or `best_of` asks for samples that are not returned.
    """
    best_of, count, width = fields.get("best_of"), fields.get("n"), fields.get("beam_width", 1)
    if not fields.get("use_beam_search"):
        if best_of not in (None, 1, count):
            raise InvalidRequest(f"best_of is {best_of}; it must be 1 or n, {count or 1}, without use_beam_search")
        return int(width)
    if width == 1:
        width = best_of or count or 1
    if width == 1:
        raise InvalidRequest("use_beam_search is true; beam_width, best_of or n must be at least 2 with it")
    return int(width)


def check_beams(fields: Mapping[str, Any], width: int, outputs: OutputOptions) -> None:
    """Raises InvalidRequest for fields that a beam search cannot heed. `SamplingParams` checks the others."""
    if fields.get("stream"):
        raise InvalidRequest(f"stream is true; it must be false with beam_width {width}: beams may change to the end")
    if outputs.log_probs:
        raise InvalidRequest(
            f"return_log_probs is true; with beam_width {width}, return_cumulative_logprob must be given instead"
        )
    count = fields.get("n")
    if count is not None and count > width:
        raise InvalidRequest(f"n is {count}; it must be at most beam_width, {width}")
