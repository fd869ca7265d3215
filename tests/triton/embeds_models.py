"""An encoder that makes embeddings for prompts, and an ensemble of it and `llm`."""

from pathlib import Path

ENCODER = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Makes one embedding of each row of a signal. It stands for an encoder of sounds."""

    def initialize(self, args):
        self._weights = np.load(f"{args['model_repository']}/weights.npy")

    def execute(self, requests):
        signals = [pb_utils.get_input_tensor_by_name(request, "signal").as_numpy() for request in requests]
        outputs = [pb_utils.Tensor("embeds", np.float32(signal @ self._weights)) for signal in signals]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
'''

ENCODER_CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "signal" data_type: TYPE_FP32 dims: [-1, -1] }
output { name: "embeds" data_type: TYPE_FP32 dims: [-1, -1] }
instance_group { kind: KIND_CPU }
"""

ENSEMBLE_CONFIG = """
platform: "ensemble"
max_batch_size: 0
input { name: "text_input" data_type: TYPE_STRING dims: [1] }
input { name: "signal" data_type: TYPE_FP32 dims: [-1, -1] }
input { name: "sampling_parameters" data_type: TYPE_STRING dims: [1] }
output { name: "text_output" data_type: TYPE_STRING dims: [-1] }
ensemble_scheduling {
  step {
    model_name: "encoder"
    model_version: -1
    input_map { key: "signal" value: "signal" }
    output_map { key: "embeds" value: "embeds" }
  }
  step {
    model_name: "llm"
    model_version: -1
    input_map { key: "text_input" value: "text_input" }
    input_map { key: "prompt_embeds" value: "embeds" }
    input_map { key: "sampling_parameters" value: "sampling_parameters" }
    output_map { key: "text_output" value: "text_output" }
  }
}
"""


def add_encoder(repository: Path, weights: bytes) -> None:
    """Add the models `encoder` and `speech` to a repository. `weights` is the encoder's file in numpy's format."""
    encoder = repository / "encoder"
    (encoder / "1").mkdir(parents=True)
    (encoder / "1" / "model.py").write_text(ENCODER)
    (encoder / "config.pbtxt").write_text(ENCODER_CONFIG)
    (encoder / "weights.npy").write_bytes(weights)
    speech = repository / "speech"
    (speech / "1").mkdir(parents=True)
    (speech / "config.pbtxt").write_text(ENSEMBLE_CONFIG)
