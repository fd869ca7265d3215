"""What all tests that use torch share."""

import os

# Before torch is imported. The models here gain little from more threads, and lose much where others use the same
# cores: torch's threads wait for each other by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before the kernels for GPUs are: on the CPU they are interpreted.
os.environ["TRITON_INTERPRET"] = "1"
