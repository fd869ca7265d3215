// What a gate does to what it is beside, for products that do not do it themselves.

#pragma once

#include <ATen/ATen.h>

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);
