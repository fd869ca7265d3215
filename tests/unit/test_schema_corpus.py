"""Whatever tokens a model likes, an output that is complete matches its schema; what is refused has a reason."""

import json
import random
from collections import Counter

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight import InvalidRequest, StructuredOutputs
from inflight.guided_decoding.grammars import Grammars
from inflight.guided_decoding.token_masks import TokenMasker
from inflight.scheduler.plan import ScheduledRequest
from load_tests.schemas.applications import APPLICATIONS, Schema
from load_tests.schemas.generated import SCHEMAS
from tests.unit.builders import make_request
from tests.unit.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
VOCABULARY = TOKENIZER.get_vocab_size()
END = TOKENIZER.token_to_id("<end>")
MASKER = TokenMasker(VOCABULARY)
LONGEST = 300
# So that most outputs are complete: tokens that close something, where they are allowed.
CLOSING = [TOKENIZER.token_to_id(name) for name in '"]}']


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCABULARY, [END])


def random_output(grammars: Grammars, schema: Schema, rng: random.Random) -> str | None:
    """A complete output of random tokens; None if it would be too long."""
    state = grammars.compile(StructuredOutputs(json=schema)).result().begin()
    request = make_request("a", grammar=state)
    tokens: list[int] = []
    while not state.ended:
        future = MASKER.begin([ScheduledRequest.next_of(request, 4)])
        assert future is not None
        allowed = np.flatnonzero(np.unpackbits(future.result().bits.view(np.uint8)[0], bitorder="little")).tolist()
        assert allowed, state.error
        token = rng.choice(allowed)
        if rng.random() < len(tokens) / 100 and (closing := [token for token in CLOSING if token in allowed]):
            token = rng.choice(closing)
        if token == END or (END in allowed and rng.random() < 0.5):
            break
        tokens.append(token)
        state.accept(token)
        if len(tokens) == LONGEST:
            return None
    return str(TOKENIZER.decode(tokens))


def check(text: str, schema: Schema) -> None:
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", list(APPLICATIONS)[:6])
def test_schemas_as_applications_send_them(grammars: Grammars, name: str) -> None:
    outputs = [random_output(grammars, APPLICATIONS[name], random.Random(seed)) for seed in range(8)]
    assert any(outputs)
    for text in outputs:
        if text is not None:
            check(text, APPLICATIONS[name])


def test_schemas_of_applications_are_served(grammars: Grammars) -> None:
    for schema in APPLICATIONS.values():
        grammars.compile(StructuredOutputs(json=schema)).result()


def test_generated_schemas(grammars: Grammars) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=300)
    @given(SCHEMAS, st.randoms(use_true_random=False))
    def follow(schema: Schema, rng: random.Random) -> None:
        try:
            grammars.compile(StructuredOutputs(json=schema)).result()
        except InvalidRequest:
            seen["refused"] += 1
            return
        for _ in range(3):
            text = random_output(grammars, schema, rng)
            seen["cut off" if text is None else "complete"] += 1
            if text is not None:
                check(text, schema)

    follow()
    assert seen["complete"] > 300, seen
