"""Locust users that request whole answers with tritonclient's `infer`."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from geventhttpclient.response import HTTPParseError
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from load_tests.endpoints import ANSWER_SECONDS, sampling_of
from load_tests.failures import failing
from load_tests.locust.load_user import LoadUser
from load_tests.prompts import PlannedRequest


class InferUser(LoadUser):
    """Sends requests to the model `completion` over HTTP."""

    kind = "infer"
    host = "127.0.0.1:8000"

    def on_start(self) -> None:
        """Connect."""
        super().on_start()
        self.client = InferenceServerClient(self.address, network_timeout=ANSWER_SECONDS)

    def on_stop(self) -> None:
        """Close the connection."""
        self.client.close()

    def answer(self, request: PlannedRequest, prompt: list[int]) -> Iterator[int]:
        """See `LoadUser`. All tokens arrive in one piece."""
        sampling = sampling_of(request)
        written = json.dumps(sampling)
        inputs = [
            _input("input_ids", "INT32", np.array(prompt, dtype=np.int32)),
            _input("sampling_parameters", "BYTES", np.array([written], dtype=np.object_)),
        ]
        # tritonclient does not convert timeouts and refused connections (OSError) or the errors of its HTTP library.
        with failing(InferenceServerException, OSError, HTTPParseError):
            result = self.client.infer("completion", inputs, outputs=[InferRequestedOutput("token_ids")])
        yield int((result.as_numpy("token_ids") >= 0).sum())


def _input(name: str, datatype: str, values: NDArray[Any]) -> InferInput:
    tensor = InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor
