"""What the users ask for: prompts of random words, the same ones in every run."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

PROMPT_WORDS = (30, 120)
OUTPUT_TOKENS = (48, 96)
SEED = 1

VOCABULARY = """
about after again answer away because before began between book bread bridge child city cloud cold come
country dark day deep door earth evening every field find fire first follow forest friend garden give glass
green ground hand hear high hill horse house island journey keep king know land last learn leave letter
light listen little long market morning mother mountain music name near never night often old open other
paper people picture place question rain read river road school sea second shadow ship short side silver
sing slow small snow song sound stone story strong summer table teach thing think three time town travel
tree under valley village voice wait walk wall warm water white wind window winter wonder word work year
"""


@dataclass(frozen=True)
class Task:
    """One request: a prompt and the number of tokens to answer it with, no more and no fewer."""

    prompt: str
    output_tokens: int


def tasks() -> Iterator[Task]:
    """Yield requests without end; each iterator yields the same ones."""
    chance = random.Random(SEED)
    vocabulary = VOCABULARY.split()
    while True:
        words = chance.choices(vocabulary, k=chance.randint(*PROMPT_WORDS))
        yield Task(" ".join(words), chance.randint(*OUTPUT_TOKENS))
