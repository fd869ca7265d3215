"""vLLM, llama.cpp and transformers as servers to compare with ours. `make peers` installs them into the cache."""
