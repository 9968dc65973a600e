// Products x Wᵀ with vector lanes along k, so that weights are read as they lie in memory. Every
// output is one accumulator, filled in ascending k and folded by Vec::sum_block: the same
// operations whatever the number of rows. Blocks of (1, B), (2, B/2) and (4, B/4) rows × columns
// keep B accumulators in registers; a block of 4 rows reads each weight once from the nearest cache
// for 4 rows.
#pragma once

#include "kernels/cpu/kernel_table.h"

namespace vamp::cpu::VAMP_ISA {

// out[m * N + n] = x[m] · w[n]. Rows of w are ldw elements apart. M * N == Vec::kBlock.
template <int M, int N, class X, class W>
struct DotBlock {
  static void run(const X* const* x, const W* const* w, int k, int64_t prefetch, float* out) {
    typename Vec::F acc[M * N];
    for (int i = 0; i < M * N; ++i) acc[i] = Vec::zero();
    int j = 0;
    for (; j + Vec::kWidth <= k; j += Vec::kWidth) {
      typename Vec::F xs[M];
      for (int m = 0; m < M; ++m) xs[m] = Vec::load(x[m] + j);
      for (int n = 0; n < N; ++n) {
        if (prefetch) Vec::prefetch(w[n] + j + prefetch);
        const typename Vec::F ws = Vec::load(w[n] + j);
        for (int m = 0; m < M; ++m) acc[m * N + n] = Vec::fma(xs[m], ws, acc[m * N + n]);
      }
    }
    if (j < k) {
      typename Vec::F xs[M];
      for (int m = 0; m < M; ++m) xs[m] = Vec::load(x[m] + j, k - j);
      for (int n = 0; n < N; ++n) {
        const typename Vec::F ws = Vec::load(w[n] + j, k - j);
        for (int m = 0; m < M; ++m) acc[m * N + n] = Vec::fma(xs[m], ws, acc[m * N + n]);
      }
    }
    Vec::sum_block(acc, out);
  }
};

#ifdef __AVX512BF16__
// bf16 × bf16: VDPBF16PS, 32 elements of k at a time.
template <int M, int N>
struct DotBlock<M, N, Bf16, Bf16> {
  static __m512bh load(const Bf16* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static __m512bh load(const Bf16* p, int n) {
    const __mmask32 mask = (1u << n) - 1;
    return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, p));
  }
  static void run(const Bf16* const* x, const Bf16* const* w, int k, int64_t prefetch, float* out) {
    __m512 acc[M * N];
    for (int i = 0; i < M * N; ++i) acc[i] = _mm512_setzero_ps();
    int j = 0;
    for (; j + 32 <= k; j += 32) {
      __m512bh xs[M];
      for (int m = 0; m < M; ++m) xs[m] = load(x[m] + j);
      for (int n = 0; n < N; ++n) {
        if (prefetch) Vec::prefetch(w[n] + j + prefetch);
        const __m512bh ws = load(w[n] + j);
        for (int m = 0; m < M; ++m) acc[m * N + n] = _mm512_dpbf16_ps(acc[m * N + n], xs[m], ws);
      }
    }
    if (j < k) {
      __m512bh xs[M];
      for (int m = 0; m < M; ++m) xs[m] = load(x[m] + j, k - j);
      for (int n = 0; n < N; ++n) {
        const __m512bh ws = load(w[n] + j, k - j);
        for (int m = 0; m < M; ++m) acc[m * N + n] = _mm512_dpbf16_ps(acc[m * N + n], xs[m], ws);
      }
    }
    Vec::sum_block(acc, out);
  }
};
#endif

inline constexpr int kBlock = Vec::kBlock;

// c[m][kBlock] for m < rows <= 4: x[m] · (row n of w), n < columns; further columns are arbitrary.
template <int M, class X, class W>
void dot_columns(const X* const* x, const W* w, int64_t ldw, int k, int columns, int64_t prefetch,
                 float (*c)[kBlock]) {
  constexpr int N = kBlock / M;
  for (int n0 = 0; n0 < columns; n0 += N) {
    const W* ws[N];
    for (int n = 0; n < N; ++n) ws[n] = w + (n0 + n < columns ? n0 + n : columns - 1) * ldw;
    float sums[kBlock];
    DotBlock<M, N, X, W>::run(x, ws, k, prefetch, sums);
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) c[m][n0 + n] = sums[m * N + n];
    }
  }
}

template <class X, class W>
void dot_rows(const X* const* x, int rows, const W* w, int64_t ldw, int k, int columns,
              int64_t prefetch, float (*c)[kBlock]) {
  if (rows == 1) return dot_columns<1>(x, w, ldw, k, columns, prefetch, c);
  if (rows == 2) return dot_columns<2>(x, w, ldw, k, columns, prefetch, c);
  const X* const xs[4] = {x[0], x[1], x[2], x[rows == 3 ? 2 : 3]};
  dot_columns<4>(xs, w, ldw, k, columns, prefetch, c);
}

template <class A>
void store_row(const Product& p, int row, int column, int columns, const float* c) {
  const int64_t offset = (p.out_index ? p.out_index[row] : row) * p.out_stride + column;
  for (int i = 0; i < columns; i += Vec::kWidth) {
    const int left = columns - i;
    typename Vec::F v = Vec::load(c + i, left);
    if (p.bias) v = Vec::add(v, Vec::load(p.bias + column + i, left));
    if (p.kind == Product::Out::kActivation) {
      Vec::store(static_cast<A*>(p.out) + offset + i, v, left);
    } else {
      float* out = static_cast<float*>(p.out) + offset + i;
      if (p.kind == Product::Out::kAddFloat) v = Vec::add(Vec::load(out, left), v);
      Vec::store(out, v, left);
    }
  }
}

// Calls body(first_row, count, row pointers) for every 4 rows. The last rows of a panel are also
// told where the next panel begins, so that its weights are on their way.
template <class A, class Body>
void for_row_quads(const Input& input, const Body& body) {
  for (int r = 0; r < input.rows; r += 4) {
    const int count = input.rows - r < 4 ? input.rows - r : 4;
    const A* x[4];
    for (int i = 0; i < count; ++i) {
      x[i] = static_cast<const A*>(input.source.data) + input.source.row(r + i);
    }
    body(r, count, x);
  }
}

// Weights ahead in memory are asked for by the first quad of rows only, and not past the range's
// end.
inline int64_t prefetch_distance(int first_row, int n, int n_end, int64_t k) {
  return first_row == 0 && n + 2 * kBlock <= n_end ? kBlock * k : 0;
}

template <class A, class W>
void multiply(const Input& input, const Product& product, int n_begin, int n_end) {
  const W* weight = static_cast<const W*>(product.weight);
  for (int n = n_begin; n < n_end; n += kBlock) {
    const int columns = n_end - n < kBlock ? n_end - n : kBlock;
    for_row_quads<A>(input, [&](int r, int count, const A* const* x) {
      float c[4][kBlock];
      dot_rows(x, count, weight + int64_t{n} * input.k, input.k, input.k, columns,
               prefetch_distance(r, n, n_end, input.k), c);
      for (int i = 0; i < count; ++i) store_row<A>(product, r + i, n, columns, c[i]);
    });
  }
}

inline Vec::F silu(Vec::F x) {
  const Vec::F one = Vec::set(1.0f);
  return Vec::div(x, Vec::add(one, Vec::exp(Vec::sub(Vec::zero(), x))));
}

template <class A, class W>
void gate_up(const Input& input, const void* gate, const void* up, int n_total, int n_begin,
             int n_end, void* h) {
  const int64_t k = input.k;
  for (int n = n_begin; n < n_end; n += kBlock) {
    const int columns = n_end - n < kBlock ? n_end - n : kBlock;
    for_row_quads<A>(input, [&](int r, int count, const A* const* x) {
      float g[4][kBlock], u[4][kBlock];
      const int64_t ahead = prefetch_distance(r, n, n_end, k);
      dot_rows(x, count, static_cast<const W*>(gate) + n * k, k, input.k, columns, ahead, g);
      dot_rows(x, count, static_cast<const W*>(up) + n * k, k, input.k, columns, ahead, u);
      for (int i = 0; i < count; ++i) {
        A* out = static_cast<A*>(h) + int64_t{r + i} * n_total + n;
        for (int c = 0; c < columns; c += Vec::kWidth) {
          const int left = columns - c;
          const Vec::F v = Vec::mul(silu(Vec::load(g[i] + c, left)), Vec::load(u[i] + c, left));
          Vec::store(out + c, v, left);
        }
      }
    });
  }
}

inline size_t nothing_packed(int, int) {
  return 0;
}
inline void pack_nothing(const Input&, int, int, void*) {}

template <class A, class W>
constexpr Matmul lanes_matmul() {
  return {nothing_packed, pack_nothing, multiply<A, W>, gate_up<A, W>};
}

}  // namespace vamp::cpu::VAMP_ISA
