"""Drafts that are found in earlier tokens, without a model: the methods `ngram` and `suffix`."""

from collections.abc import Sequence
from itertools import takewhile

from inflight.request import Request
from inflight.speculation.acceptance import Acceptance
from inflight.speculation.follower import Follower
from inflight.speculation.recent_outputs import OutputsByTenant
from inflight.speculation.speculative_config import SUFFIX, SpeculativeConfig


class LookupDrafter:
    """Follows each output along earlier tokens, see `Follower`."""

    def __init__(self, config: SpeculativeConfig, num_logits: int) -> None:
        """`num_logits`: outputs hold only tokens below this number. Prompts may hold others."""
        self._num_logits = num_logits
        self._shortest, self._longest = config.prompt_lookup_min, config.prompt_lookup_max
        self._acceptance = Acceptance()
        self._outputs = OutputsByTenant(self._shortest, self._longest) if config.method == SUFFIX else None

    def outlook(self, request: Request) -> float:
        """See `Drafter`."""
        if request.follower is None:
            request.follower = Follower(
                request.token_ids,
                len(request.prompt_ids),
                list(request.options.draft_input_ids),
                self._acceptance,
                shortest=self._shortest,
                longest=self._longest,
            )
        return request.follower.outlook(self._outputs.of(request.tenant) if self._outputs else None)

    def seconds_per_token(self, num_requests: int) -> float:
        """Return 0: looking up takes microseconds."""
        return 0.0

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """See `Drafter`."""
        drafts = [request.follower.draft(count) if request.follower else [] for request, count in wanted]
        return [list(takewhile(self._num_logits.__gt__, draft)) for draft in drafts]

    def observe(self, request: Request) -> None:
        """See `Drafter`."""
        if request.follower is not None:
            request.follower.advance()

    def completed(self, request: Request) -> None:
        """Remember the output, so that later requests of the tenant may follow it."""
        if self._outputs is not None and request.num_output:
            self._outputs.add(request.tenant, request.output_ids)

    def forget(self, request: Request) -> None:
        """Do nothing: what follows a request is part of it."""
