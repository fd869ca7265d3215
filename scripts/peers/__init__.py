"""vLLM, llama.cpp and transformers as servers beside ours; `make peers` installs them into the cache."""
