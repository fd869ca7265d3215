"""Makes the responses of TensorRT-LLM's models `ensemble` and `tensorrt_llm_bls`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.output_options import OutputOptions
from serving.outputs import OUTPUTS
from serving.perf_metrics import block_counts
from serving.response import ResponseFormat, Sample


class EnsembleFormat(ResponseFormat):
    """Our own outputs in the shapes that clients of these models expect."""

    def sends_apart(self, request: Any) -> bool:
        # Where a client names no outputs, as over HTTP, Triton names all of them.
        named = set(request.requested_output_names())
        return "sequence_index" in named and not named >= {output.name for output in OUTPUTS}

    def _tensors(self, samples: Sequence[Sample], outputs: OutputOptions, *, first: bool, final: bool) -> list[Any]:
        tensors = super()._tensors(samples, outputs, first=first, final=final)
        if samples[0].index is not None:
            tensors.append(self._numbers("sequence_index", [samples[0].index], np.int32))
        if outputs.perf_metrics and final:
            counts = block_counts([s.request for s in samples if s.request is not None], self._block_size)
            tensors += [self._tensor(name, values) for name, values in counts.items()]
        return tensors

    def _texts(self, name: str, texts: Sequence[str]) -> Any:
        if name != "text_output":
            return super()._texts(name, texts)
        # Their last step makes one text after the other, whatever the batch dimension.
        return pb_utils.Tensor(name, np.array([text.encode() for text in texts], dtype=np.object_))
