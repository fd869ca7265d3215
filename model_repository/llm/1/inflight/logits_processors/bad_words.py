"""`bad_words`: token sequences that the output must not contain."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import islice

from inflight.logits_processors.edits import LogitEdits


class BadWords:
    """Forbids the last token of a sequence while the output ends with the tokens before it."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._always: list[int] = []
        self._after: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        """Sequences as (all tokens but the last, last token), by the last but one token."""
        longest = 0
        for *beginning, last in dict.fromkeys(map(tuple, sequences)):
            if beginning:
                self._after[beginning[-1]].append((tuple(beginning), last))
                longest = max(longest, len(beginning))
            else:
                self._always.append(last)
        self._output: deque[int] = deque(maxlen=longest)

    def edit(self, edits: LogitEdits, ahead: Sequence[int] = ()) -> None:
        edits.forbid(self._always)
        output = self._output if not ahead else deque([*self._output, *ahead], maxlen=self._output.maxlen)
        if not output:
            return
        ends = [last for beginning, last in self._after.get(output[-1], ()) if _ends_with(output, beginning)]
        edits.forbid(list(dict.fromkeys(ends)))

    def accept(self, token_id: int) -> None:
        self._output.append(token_id)


def _ends_with(output: deque[int], beginning: Sequence[int]) -> bool:
    start = len(output) - len(beginning)
    return start >= 0 and tuple(islice(output, start, None)) == beginning
