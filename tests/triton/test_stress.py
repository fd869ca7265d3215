"""150 random requests, some cancelled and some malformed: every token of every answer is right, or the error is."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from load_tests.storm.malformed import BAD
from scripts.launch.triton_server import TritonServer
from tests.triton.test_answers import made_up_prompt
from tests.triton.test_cancellation import wait_until_idle
from tests.triton.wire import Answer, Fields, ask, together

REQUESTS = 150
LONGEST = 20
# Few prompts, so that transformers has to answer only a few.
PROMPTS = [made_up_prompt(1000 + i, 4 + 8 * i) for i in range(7)]
# The answer to this chat ends with an end-of-sequence token.
CHAT = [{"role": "user", "content": "Reply with one word: yes or no. Is water wet?"}]


@dataclass
class Right:
    """The longest greedy answer to a prompt. Each shorter answer is a prefix of it."""

    token_ids: list[int]
    eos: int

    def answer(self, max_tokens: int, tokenizer: Any) -> tuple[str, int, str]:
        """Return the text, the number of tokens and the finish reason."""
        tokens = self.token_ids[:max_tokens]
        ended = self.eos in tokens
        return tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), "stop" if ended else "length"


@pytest.fixture(scope="module")
def right(reference: Any, tokenizer: Any) -> dict[str, Right]:
    """The expected answers by prompt, from transformers' `generate`. Like the engine, it ends at an end-of-sequence
    token."""
    chat = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    answers = {}
    for prompt in [*PROMPTS, chat]:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = reference.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
        answers[prompt] = Right(output[0, inputs["input_ids"].shape[1] :].tolist(), reference.config.eos_token_id)
    assert reference.config.eos_token_id in answers[chat].token_ids
    return answers


def random_request(rng: random.Random, prompts: list[str]) -> Fields:
    stream = rng.random() < 0.8
    fields = {"text_input": rng.choice(prompts), "max_tokens": rng.randint(1, LONGEST), "stream": stream}
    return {**fields, "exclude_input_in_output": True, "return_num_output_tokens": True}


@pytest.mark.slow
def test_random_load(server: TritonServer, right: dict[str, Right], tokenizer: Any) -> None:
    rng = random.Random(3)
    messages: dict[int, str] = {}
    asked: list[Fields] = []
    cancels: list[int | None] = []
    for index in range(REQUESTS):
        if index % 12 == 5:
            fields, messages[index] = rng.choice(BAD)
        else:
            fields = random_request(rng, list(right))
        asked.append(fields)
        cancels.append(rng.randint(0, 6) if index % 3 == 0 else None)

    def make(client):  # type: ignore[no-untyped-def]
        at_once = asyncio.Semaphore(120)

        async def guarded(fields: Fields, cancel_after: int | None) -> Answer:
            async with at_once:
                return await ask(client, fields, cancel_after=cancel_after)

        return [guarded(f, c) for f, c in zip(asked, cancels, strict=True)]

    answers = together(server.grpc_url, make, timeout=240)
    for index, (fields, cancelled, answer) in enumerate(zip(asked, cancels, answers, strict=True)):
        if index in messages:
            assert cancelled == 0 or messages[index] in answer.error
            continue
        expected = right[fields["text_input"]].answer(fields["max_tokens"], tokenizer)
        assert answer.error is None
        if answer.finish_reason == "given up":
            assert expected[0].startswith(answer.text)
        else:
            assert (answer.text, answer.num_output_tokens, answer.finish_reason) == expected
    # Not a full third: a request with fewer responses than its cancellation waits for ends normally.
    assert sum(answer.finish_reason == "given up" for answer in answers) > REQUESTS / 6
    wait_until_idle(server, 40)
