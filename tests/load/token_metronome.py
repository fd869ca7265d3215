"""The metronome of load_tests, for prompts of token ids, with its times from the configuration.

The first token of an answer comes `first_ms` after its request, each other one `gap_ms` after the one before. When it
really sent them, by the clock that all processes share, is a line of JSON in `times_file` for each answer.
"""

import json
import time
from typing import Any

import metronome


class TritonPythonModel(metronome.TritonPythonModel):
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.first, self.gap = (float(parameters[name]["string_value"]) / 1000 for name in ("first_ms", "gap_ms"))
        self.times_file = parameters["times_file"]["string_value"]
        super().initialize(args)

    def execute(self, requests: list[Any]) -> None:
        with self.changed:
            for request in requests:
                self.put(TokenAnswer(request, self.first, self.gap, self.times_file))
            self.changed.notify()


class TokenAnswer(metronome.Answer):
    def __init__(self, request: Any, first: float, gap: float, times_file: str) -> None:
        inputs = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
        self.sender = request.get_response_sender()
        self.prompt_tokens = len(inputs["input_ids"])
        self.gap, self.left = gap, json.loads(inputs["sampling_parameters"][0])["max_tokens"]
        self.tokens = 1
        self.next_time = time.monotonic() + first
        self.times: list[float] = []
        self.times_file = times_file

    def send(self) -> bool:
        self.times.append(time.monotonic())
        if more := super().send():
            return more
        with open(self.times_file, "a") as file:
            file.write(f"{json.dumps(self.times)}\n")
        return False
