// The gate of a gated MLP, silu(gate) * up, for products that do not compute it themselves.

#pragma once

#include <ATen/core/Tensor.h>

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);
