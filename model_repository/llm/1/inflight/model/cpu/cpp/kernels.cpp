// All kernels as one translation unit: parsing torch's headers takes longer than compiling the kernels.

#include "attention.cpp"
#include "experts.cpp"
#include "int4_rounding.cpp"
#include "linear.cpp"
#include "logprobs.cpp"
#include "lora.cpp"
#include "recurrence.cpp"
#include "sampling.cpp"
#include "thread_pool.cpp"
#include "tokenwise.cpp"
