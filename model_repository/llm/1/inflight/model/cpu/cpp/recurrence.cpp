// Recurrent layers, for the next tokens of many sequences. Their states change in place.
//
// Each token is computed in turn, in the same way in prompts and in output. A part of a state stays in the L1 cache while all
// tokens pass it. transformers computes chunks of a prompt by matrix products, which takes several times as long on CPUs.

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

// So many sums are computed at the same time, which hides the latency of additions and shares loads.
constexpr int AT_ONCE = 4;

// One head of the gated delta rule: `COLUMNS` times 16 columns of its state, and T tokens. Rows of numbers of a head are `H`
// times their width apart.
template <int COLUMNS>
void delta_rule_of_head(float* s, const float* q, const float* k, const float* v, const float* g, const float* beta, float* out,
                        int64_t T, int64_t H, int64_t K, int64_t V) {
  for (int64_t t = 0; t < T; ++t, q += H * K, k += H * K, v += H * V, out += H * V, g += H, beta += H) {
    Lanes change[COLUMNS], result[COLUMNS];
    const Lanes decay = all(std::exp(*g));
    for (int c = 0; c < COLUMNS; ++c) change[c] = result[c] = all(0.0f);
    for (int64_t i = 0; i < K; ++i)
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; ++c) change[c] = fma(load(s + i * V + c * LANES), all(k[i]), change[c]);
    for (int c = 0; c < COLUMNS; ++c) change[c] = (load(v + c * LANES) - change[c] * decay) * all(*beta);
    for (int64_t i = 0; i < K; ++i)
#pragma GCC unroll 4
      for (int c = 0; c < COLUMNS; ++c) {
        const Lanes next = fma(change[c], all(k[i]), load(s + i * V + c * LANES) * decay);
        store(s + i * V + c * LANES, next);
        result[c] = fma(next, all(q[i]), result[c]);
      }
    for (int c = 0; c < COLUMNS; ++c) store(out + c * LANES, result[c]);
  }
}

// The gated delta rule (arXiv 2412.06464). With the decay exp(g), the state S [keys, values] becomes
//   S' = exp(g) S + k (beta (v - k' exp(g) S))', and the output is q' S'.
// state is [B, H, K, V], q and k [B, T, H, K], v [B, T, H, V], g and beta [B, T, H]. Returns [B, T, H, V]. All float32.
Tensor gated_delta_rule(const Tensor& state, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                        const Tensor& beta) {
  const int64_t B = state.size(0), H = state.size(1), K = state.size(2), V = state.size(3), T = q.size(1);
  TORCH_CHECK(V % LANES == 0, "values of ", V);
  floats(state, {B, H, K, V});
  const float *queries = floats(q, {B, T, H, K}), *keys = floats(k, {B, T, H, K}), *values = floats(v, {B, T, H, V});
  const float *decays = floats(g, {B, T, H}), *rates = floats(beta, {B, T, H});
  Tensor output = at::empty({B, T, H, V}, state.options());
  float *out = output.mutable_data_ptr<float>(), *states = state.mutable_data_ptr<float>();
  const bool together = V % (AT_ONCE * LANES) == 0;
  const int64_t width = (together ? AT_ONCE : 1) * LANES, parts = V / width;
  share_out_rows(B * H * parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t head = part / parts, column = part % parts * width, row = head / H * T * H + head % H;
      (together ? delta_rule_of_head<AT_ONCE> : delta_rule_of_head<1>)(
          states + head * K * V + column, queries + row * K, keys + row * K, values + row * V + column, decays + row,
          rates + row, out + row * V + column, T, H, K, V);
    }
  });
  return output;
}

// Some rows of the state of one head of Mamba-2, and T tokens. `x` and `out` have those rows of a token, `x_stride` apart.
// `input` [T] are the time steps, `decay` [T] the factors of the state. `b` and `c` are `stride` apart.
template <int ROWS>
void state_space_of_head(float* s, const float* x, const float* input, const float* decay, const float* b, const float* c,
                         float* out, int64_t T, int64_t x_stride, int64_t stride, int64_t N) {
  for (int64_t t = 0; t < T; ++t, x += x_stride, out += x_stride, b += stride, c += stride) {
    Lanes result[ROWS], factor[ROWS];
    for (int r = 0; r < ROWS; ++r) result[r] = all(0.0f), factor[r] = all(x[r] * input[t]);
    const Lanes kept = all(decay[t]);
    for (int64_t n = 0; n < N; n += LANES) {
      const Lanes in = load(b + n), of = load(c + n);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        const Lanes next = fma(in, factor[r], load(s + r * N + n) * kept);
        store(s + r * N + n, next);
        result[r] = fma(next, of, result[r]);
      }
    }
    for (int r = 0; r < ROWS; ++r) out[r] = sum_of(result[r]);
  }
}

// Mamba-2 (arXiv 2405.21060): the state S [width, N] becomes S' = exp(dt A) S + dt x b', and the output is S' c.
// state is [B, H, P, N], x [B, T, H, P], dt [B, T, H], a [H], b and c [B, T, G, N]. Returns [B, T, H, P]. All float32.
Tensor state_space(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b, const Tensor& c) {
  const int64_t B = state.size(0), H = state.size(1), P = state.size(2), N = state.size(3), T = x.size(1), G = b.size(2);
  TORCH_CHECK(N % LANES == 0 && H % G == 0, "state is ", state.sizes(), ", b ", b.sizes());
  floats(state, {B, H, P, N});
  const float *inputs = floats(x, {B, T, H, P}), *times = floats(dt, {B, T, H}), *rates = floats(a, {H});
  const float *ins = floats(b, {B, T, G, N}), *outs = floats(c, {B, T, G, N});
  Tensor output = at::empty({B, T, H, P}, state.options());
  float *out = output.mutable_data_ptr<float>(), *states = state.mutable_data_ptr<float>();
  share_out_rows(B * H, 1, [&](int64_t first, int64_t last) {
    std::vector<float> steps(T), decays(T);
    for (int64_t part = first; part < last; ++part) {
      const int64_t head = part % H, token = part / H * T, group = (token * G + head / (H / G)) * N;
      for (int64_t t = 0; t < T; ++t) {
        steps[t] = times[(token + t) * H + head];
        decays[t] = std::exp(steps[t] * rates[head]);
      }
      for (int64_t p = 0, rows; p < P; p += rows) {
        rows = P - p < AT_ONCE ? 1 : AT_ONCE;
        const int64_t at = (token * H + head) * P + p;
        (rows == 1 ? state_space_of_head<1> : state_space_of_head<AT_ONCE>)(
            states + (part * P + p) * N, inputs + at, steps.data(), decays.data(), ins + group, outs + group, out + at, T,
            H * P, G * N, N);
      }
    }
  });
  return output;
}

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("gated_delta_rule(Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta) -> Tensor",
              gated_delta_rule);
  library.def("state_space(Tensor(a!) state, Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c) -> Tensor", state_space);
}

}  // namespace
