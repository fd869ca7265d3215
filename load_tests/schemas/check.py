"""Asks a server for answers that match schemas, and checks them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema
from tqdm import tqdm

from inflight_client import AsyncClient, InvalidRequest
from load_tests.schemas.applications import Schema

_AT_ONCE = 24
_LONGEST_QUOTE = 1000


@dataclass
class Outcome:
    """What came of a schema."""

    refusal: str | None = None
    """Why it is not served."""
    cut: list[str] = field(default_factory=list)
    """Answers that reached their length."""
    matching: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Answers that do not match the schema, although they were not cut off."""


async def ask_all(
    url: str, schemas: Sequence[Schema], *, samples: int, temperature: float, max_tokens: int
) -> list[Outcome]:
    """Return what comes of each schema, in their order.

    Raises:
        InflightError: a request failed otherwise than by a refusal.
    """
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(number: int, schema: Schema) -> Outcome:
        prompt = f"A JSON document, and its schema {json.dumps(schema)[:_LONGEST_QUOTE]}\n\n"
        outcome = Outcome()
        async with places:
            try:
                answer = await client.generate(
                    prompt,
                    structured_outputs={"json": schema},
                    n=samples,
                    seed=number,
                    temperature=temperature,
                    max_tokens=max_tokens,
                )
            except InvalidRequest as error:
                outcome.refusal = str(error)
                return outcome
        for choice in answer.choices:
            cut_off = choice.finish_reason == "length"
            fitting = outcome.matching if not cut_off and matches(choice.text, schema) else outcome.wrong
            (outcome.cut if cut_off else fitting).append(choice.text)
        return outcome

    async def shown(number: int, schema: Schema) -> Outcome:
        outcome = await ask(number, schema)
        bar.update()
        return outcome

    with tqdm(total=len(schemas), desc="schemas") as bar:
        async with AsyncClient(f"grpc://{url}") as client:
            return await asyncio.gather(*(shown(*each) for each in enumerate(schemas)))


def matches(text: str, schema: Schema) -> bool:
    """Return whether a text is JSON that matches a schema, formats included where jsonschema knows them."""
    validator: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return bool(validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(document))
