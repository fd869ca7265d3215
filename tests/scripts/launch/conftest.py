"""A model so small that a real server starts in a second or two."""

from pathlib import Path

import pytest

CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [{ name: "text_input" data_type: TYPE_STRING dims: [1] }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
parameters { key: "model" value { string_value: "in git" } }
parameters { key: "kept" value { string_value: "as it was" } }
"""

# It imports ssl because this import fails first if the stub runs with another libpython than its own.
MODEL = """
import ssl
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        # In this order: Triton writes a logged line and its end apart, and a print of this process could come between.
        print("plain output", flush=True)
        pb_utils.Logger.log_info("the model speaks")

    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input")
            sender = request.get_response_sender()
            print("taking up a request", flush=True)
            time.sleep(float(text.as_numpy()[0]))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model repository with one model, `llm`. It waits for the number of seconds in its text and then echoes the
    text."""
    version = tmp_path / "repository/llm/1"
    version.mkdir(parents=True)
    version.with_name("config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL)
    return tmp_path / "repository"
