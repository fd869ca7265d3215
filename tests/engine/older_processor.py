"""A pytest plugin: the C++ kernels are built for the oldest processors that they are for, whatever this one is."""

from inflight.model.cpu import kernels

kernels.INSTRUCTION_SETS = kernels.INSTRUCTION_SETS[-1:]
