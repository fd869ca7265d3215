"""`make peers`: installs the servers that `make compare COMPARE=--peers` runs beside ours.

vLLM for the CPU, in a virtual environment of its own, and llama.cpp, compiled for this machine by its C++ compiler,
with the default model in bfloat16. Both lie in the cache, 4 GB, and are made once; it takes ten minutes or so.
"""

import argparse
import sys

from scripts.launch.errors import LauncherError
from scripts.peers import llama_cpp, vllm


def main() -> int:
    """Install both and return the exit status: 1 where one can't be, which a line says."""
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
