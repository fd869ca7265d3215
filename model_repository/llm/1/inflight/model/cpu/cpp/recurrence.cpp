// One token's step of the recurrent layers, for many sequences. Each state is read and written once, in place.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "lanes.h"

namespace {

const float* floats(const Tensor& x, std::vector<int64_t> sizes) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.is_contiguous() && x.sizes() == sizes, "x is ", x.sizes(), ", not ",
              sizes);
  return x.const_data_ptr<float>();
}

// The gated delta rule (arXiv 2412.06464). With the decay exp(g), the state S [keys, values] becomes
//   S' = exp(g) S + k (beta (v - k' exp(g) S))', and the output is q' S'.
// state is [B, H, K, V], q and k [B, H, K], v [B, H, V], g and beta [B, H]. Returns [B, H, V]. All float32.
Tensor gated_delta_step(const Tensor& state, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                        const Tensor& beta) {
  const int64_t B = state.size(0), H = state.size(1), K = state.size(2), V = state.size(3);
  TORCH_CHECK(V % LANES == 0, "values of ", V);
  floats(state, {B, H, K, V});
  const float *queries = floats(q, {B, H, K}), *keys = floats(k, {B, H, K}), *values = floats(v, {B, H, V});
  const float *decays = floats(g, {B, H}), *rates = floats(beta, {B, H});
  Tensor output = at::empty({B, H, V}, state.options());
  float *out = output.mutable_data_ptr<float>(), *states = state.mutable_data_ptr<float>();
  share_out_rows(B * H, 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float decay = std::exp(decays[row]), rate = rates[row];
      const float *query = queries + row * K, *key = keys + row * K, *value = values + row * V;
      for (int64_t column = 0; column < V; column += LANES) {
        float* s = states + row * K * V + column;
        Lanes known = all(0.0f);
        for (int64_t i = 0; i < K; ++i) known = fma(load(s + i * V), all(key[i] * decay), known);
        const Lanes change = (load(value + column) - known) * all(rate);
        Lanes result = all(0.0f);
        for (int64_t i = 0; i < K; ++i) {
          const Lanes next = fma(change, all(key[i]), load(s + i * V) * all(decay));
          store(s + i * V, next);
          result = fma(next, all(query[i]), result);
        }
        store(out + row * V + column, result);
      }
    }
  });
  return output;
}

// A step of Mamba-2 (arXiv 2405.21060): the state S [width, N] becomes S' = exp(dt A) S + dt x b', the output is S' c.
// state is [B, H, P, N], x [B, H, P], dt [B, H], a [H], b and c [B, G, N]. Returns [B, H, P]. All float32.
Tensor state_space_step(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b,
                        const Tensor& c) {
  const int64_t B = state.size(0), H = state.size(1), P = state.size(2), N = state.size(3), G = b.size(1);
  TORCH_CHECK(N % LANES == 0 && H % G == 0, "state is ", state.sizes(), ", b ", b.sizes());
  floats(state, {B, H, P, N});
  const float *inputs = floats(x, {B, H, P}), *times = floats(dt, {B, H}), *rates = floats(a, {H});
  const float *ins = floats(b, {B, G, N}), *outs = floats(c, {B, G, N});
  Tensor output = at::empty({B, H, P}, state.options());
  float *out = output.mutable_data_ptr<float>(), *states = state.mutable_data_ptr<float>();
  share_out_rows(B * H, 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t head = row % H, group = row / H * G + head / (H / G);
      const float time = times[row], decay = std::exp(time * rates[head]);
      const float *from = ins + group * N, *to = outs + group * N;
      for (int64_t p = 0; p < P; ++p) {
        float* s = states + (row * P + p) * N;
        const Lanes input = all(inputs[row * P + p] * time);
        Lanes result = all(0.0f);
        for (int64_t n = 0; n < N; n += LANES) {
          const Lanes next = fma(load(from + n), input, load(s + n) * all(decay));
          store(s + n, next);
          result = fma(next, load(to + n), result);
        }
        out[row * P + p] = sum_of(result);
      }
    }
  });
  return output;
}

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("gated_delta_step(Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta) -> Tensor",
              gated_delta_step);
  library.def("state_space_step(Tensor(a!) state, Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c) -> Tensor",
              state_space_step);
}

}  // namespace
