"""A drafter that knows what the fake model will say."""

from collections.abc import Sequence

from inflight.request import Request
from tests.unit.fake_model import VOCABULARY, next_token, prefix_names


class FakeDrafter:
    """Drafts that are right, wrong, or right up to some token."""

    KINDS = ("right", "wrong", "half right")

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def outlook(self, request: Request) -> float:
        return {"right": 1.0, "wrong": 0.5, "half right": 0.7}[self._kind]

    def seconds_per_token(self, num_requests: int) -> float:
        return 0.0

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        return [self._draft(request, count) for request, count in wanted]

    def _draft(self, request: Request, count: int) -> list[int]:
        tokens = list(request.token_ids)
        for _ in range(count):
            right = self._kind == "right" or (self._kind == "half right" and prefix_names(tokens)[-1] % 3 > 0)
            tokens.append((next_token(tokens) + (not right)) % VOCABULARY)
        return tokens[len(request.token_ids) :]

    def observe(self, request: Request) -> None:
        pass

    def completed(self, request: Request) -> None:
        pass

    def forget(self, request: Request) -> None:
        pass
