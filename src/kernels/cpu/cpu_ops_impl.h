// CpuOps: divides each operation into pieces for the thread pool and calls the kernels of the
// chosen instruction set. Owns the pool and the scratch memory. One thread at a time calls it.
#pragma once

#include <vector>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"

namespace vamp::cpu {

inline Element element_of(DType dtype) {
  return dtype == DType::kBf16  ? Element::kBf16
         : dtype == DType::kF16 ? Element::kF16
                                : Element::kF32;
}
inline int64_t element_bytes(Element e) {
  return e == Element::kF32 ? 4 : 2;
}

class CpuOps final : public Ops {
 public:
  CpuOps(const KernelTable& kernels, DType activation, int threads);

  OpsTypes types() const override { return {activation_, DType::kF32}; }
  void embed(const WeightMatrix& table, const TokenId* ids, int rows, void* residual) override;
  void rms_norm(const void* residual, int rows, int cols, const NormWeight& weight,
                void* out) override;
  void add_rms_norm(const void* delta, void* residual, int rows, int cols, const NormWeight& weight,
                    void* out) override;
  void linear(const void* x, int64_t x_stride, int rows,
              std::span<const LinearPart> parts) override;
  void head_norm(void* x, int64_t x_stride, int rows, int heads, int head_dim,
                 const NormWeight& weight) override;
  void rope_angles(const RopeFrequencies& rope, const int32_t* positions, int rows,
                   float* cos_sin) override;
  void rope(void* x, int64_t x_stride, int rows, int heads, int head_dim, int rotary_dim,
            const float* cos_sin) override;
  void write_kv(const void* k, int64_t k_stride, const void* v, int64_t v_stride,
                const SequenceBatch& batch, const KvCache& cache, int layer) override;
  void attention(const void* q, int64_t q_stride, const SequenceBatch& batch, const KvCache& cache,
                 int layer, int num_heads, float scale, void* out, int64_t out_stride) override;
  void silu_and_mul(const void* gate_up, int rows, int width, void* out) override;
  void route(const float* logits, int tokens, const MoeShape& shape, bool renormalise,
             const MoeRouting& routing) override;
  size_t moe_workspace_bytes(int tokens, const MoeShape& shape) const override;
  void moe_experts(const void* x, int tokens, const MoeShape& shape, const MoeWeights& weights,
                   const MoeRouting& routing, std::span<const int32_t> subset,
                   void* workspace) override;
  void moe_combine(const void* workspace, int tokens, const MoeShape& shape,
                   const MoeRouting& routing, void* residual) override;
  void sample(float* logits, int rows, int vocab, std::span<const SampleParams> params,
              std::span<Sample> out) override;

 private:
  // Rows of one expert that are worked on together.
  struct ExpertBlock {
    int32_t expert = 0;
    int first = 0, rows = 0;  // pairs[first ... first + rows)
    char* packed = nullptr;   // its input, where the kernels pack
    char* h = nullptr;        // silu(gate) · up
  };
  // Columns [begin, end) of a product or of an expert block.
  struct Piece {
    int what = 0;
    int begin = 0, end = 0;
  };

  char* at(const void* p, int64_t element) const {
    return static_cast<char*>(const_cast<void*>(p)) + element * element_bytes(element_);
  }
  // body(row) for every row; `work` is elements a row, by which small calls stay on one thread.
  template <class Body>
  void for_rows(int rows, int64_t work, const Body& body);
  void linear_block(const void* x, int64_t x_stride, int first, int rows,
                    std::span<const LinearPart> parts);
  void add_pieces(int what, int columns, int64_t bytes);
  std::vector<ExpertBlock> expert_blocks(const MoeShape& shape, const MoeRouting& routing,
                                         std::span<const int32_t> subset) const;
  void run_expert_blocks(std::span<ExpertBlock> blocks, const void* x, const MoeShape& shape,
                         const MoeWeights& weights, const MoeRouting& routing, void* workspace);

  const KernelTable& kernels_;
  DType activation_;
  Element element_;
  ThreadPool pool_;
  Buffer packed_;
  std::vector<Buffer> scratch_;  // one a worker
  std::vector<Piece> pieces_;
};

}  // namespace vamp::cpu
