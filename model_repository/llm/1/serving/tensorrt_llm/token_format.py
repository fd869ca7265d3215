"""Makes the responses of TensorRT-LLM's model `tensorrt_llm`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.output_options import OutputOptions
from serving.perf_metrics import block_counts, perf_metrics
from serving.response import ResponseFormat, Sample, padded


class TokenFormat(ResponseFormat):
    """Each response has the new tokens of all samples, or of all beams, in one tensor."""

    def response(
        self, samples: Sequence[Sample], outputs: OutputOptions, *, first: bool, final: bool, with_prompt: bool = False
    ) -> Any:
        prompt = samples[0].prompt_ids if outputs.prompt else []
        rows = [[*prompt, *sample.token_ids] for sample in samples]
        tensors = [
            self._tensor("output_ids", padded(rows, np.int32, -1)),
            self._numbers("sequence_length", list(map(len, rows)), np.int32),
        ]
        if outputs.log_probs:
            tensors += self._log_probs(samples)
        if outputs.num_input_tokens:
            tensors.append(self._numbers("num_input_tokens", [len(samples[0].prompt_ids)], np.int32))
        if outputs.num_output_tokens:
            tensors.append(self._numbers("num_output_tokens", [sum(len(s.token_ids) for s in samples)], np.int32))
        if outputs.perf_metrics and final:
            first_one = [s.request for s in samples if s.request is not None][:1]
            found = perf_metrics(first_one, self._block_size) | block_counts(first_one, self._block_size)
            tensors += [self._tensor(name, values) for name, values in found.items()]
        return pb_utils.InferenceResponse(output_tensors=tensors)
