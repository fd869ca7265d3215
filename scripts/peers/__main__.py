"""`make peers`: install the servers that `make compare COMPARE=--peers` compares with ours.

It installs vLLM for the CPU in a virtual environment of its own. It compiles llama.cpp for this machine with its C++
compiler and converts the default model to bfloat16 for it. Both go into the cache, which takes 4 GB and about ten
minutes, once.
"""

import argparse
import sys

from scripts.launch.errors import LauncherError
from scripts.peers import llama_cpp, vllm


def main() -> int:
    """Install both and return the exit status. It is 1 if one can't be installed, and a line says why."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    failed = False
    for name, install in ((vllm.NAME, vllm.install), (llama_cpp.NAME, llama_cpp.install)):
        try:
            print(f"{name} is in {install()}", flush=True)
        except LauncherError as error:
            failed = True
            print(f"error: {name}: {error}", file=sys.stderr)
    if vllm.allocator() is None:
        print("vLLM is faster where the system has tcmalloc; Debian's package is libtcmalloc-minimal4")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
