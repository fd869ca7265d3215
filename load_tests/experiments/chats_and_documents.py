"""Two kinds of requests that want different settings: chats, and long documents with short answers."""

from load_tests.experiments.stage import Stage
from load_tests.lengths import Uniform
from load_tests.slo import Slo

CHATS = Uniform(64, 192), Uniform(128, 384)
"""Lengths of prompts and outputs."""
DOCUMENTS = Uniform(2048, 6144), Uniform(32, 96)
"""Lengths of prompts and outputs."""


def objective(stage: Stage) -> Slo:
    """The first token within the time of 16,384 prompt tokens, and the others within that of 384 and a batch."""
    cost = stage.cost
    batch = stage.max_num_seqs * cost.per_cached_token * stage.tokens(512)
    return Slo(
        ttft=cost.per_step + cost.per_token * stage.tokens(16_384),
        itl=cost.per_step + cost.per_token * stage.tokens(384) + batch,
    )
