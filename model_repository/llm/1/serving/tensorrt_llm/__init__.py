"""The inputs and outputs of TensorRT-LLM's model `tensorrt_llm`, in place of our own: token ids in, token ids out."""
