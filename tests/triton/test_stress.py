"""500 random requests, a third given up, some malformed: every answer is right or a clear error."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from scripts.triton_server import TritonServer
from tests.triton.test_answers import made_up_prompt
from tests.triton.test_cancellation import wait_until_idle
from tests.triton.test_malformed import BAD
from tests.triton.wire import Answer, ask, together

# Few enough different prompts that transformers can answer each once.
PROMPTS = [made_up_prompt(1000 + i, 4 + 5 * i) for i in range(12)]
LONGEST = 24


def test_random_load(server: TritonServer, greedy: Callable[[str, int], str], tokenizer: Any) -> None:
    rng = random.Random(3)
    asked: list[dict[str, Any]] = []
    cancels: list[int | None] = []
    for index in range(500):
        fields: dict[str, Any] = {
            "text_input": rng.choice(PROMPTS),
            "max_tokens": rng.randint(1, LONGEST),
            "stream": True,
        }
        asked.append(rng.choice(BAD)[0] if index % 12 == 5 else fields)
        cancels.append(rng.randint(0, 6) if index % 3 == 0 else None)

    def make(client):  # type: ignore[no-untyped-def]
        at_once = asyncio.Semaphore(120)

        async def guarded(fields: dict[str, Any], cancel_after: int | None) -> Answer:
            async with at_once:
                return await ask(client, fields, cancel_after=cancel_after)

        return [guarded(f, c) for f, c in zip(asked, cancels, strict=True)]

    answers = together(server.grpc_url, make, timeout=240)
    right = {prompt: greedy(prompt, LONGEST) for prompt in PROMPTS}
    for fields, cancelled, answer in zip(asked, cancels, answers, strict=True):
        if any(fields is bad for bad, _ in BAD):
            assert answer.error is not None or cancelled is not None
        else:
            assert answer.error is None
            assert right[fields["text_input"]].startswith(answer.text)
            if cancelled is None:
                assert answer.finish_reason in ("length", "stop")
                tokens = len(tokenizer(answer.text)["input_ids"])
                assert tokens <= fields["max_tokens"] + 1
    wait_until_idle(server, 40)
