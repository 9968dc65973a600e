// Mixture of experts on the CPU: routing, and the products of each expert with its tokens.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/cpu_ops_impl.h"

namespace vamp::cpu {
namespace {

// Input and hidden rows of the blocks worked on together, which should stay in the second-level
// cache.
constexpr int64_t kBlockBytes = 5 << 18;

// The best of `p` that is not yet among chosen[0 ... rank); ties and NaN go to the lower id.
int next_best(const float* p, int experts, const int32_t* chosen, int rank) {
  int best = -1;
  for (int e = 0; e < experts; ++e) {
    if (std::find(chosen, chosen + rank, e) != chosen + rank) continue;
    if (best < 0 || p[e] > p[best]) best = e;
  }
  return best;
}

void route_token(const float* logits, const MoeShape& shape, bool renormalise, float* p,
                 int32_t* chosen, float* weights) {
  const float max = *std::max_element(logits, logits + shape.experts);
  float sum = 0;
  for (int e = 0; e < shape.experts; ++e) sum += p[e] = std::exp(logits[e] - max);
  float chosen_sum = 0;
  for (int r = 0; r < shape.top_k; ++r) {
    chosen[r] = next_best(p, shape.experts, chosen, r);
    weights[r] = p[chosen[r]] / sum;
    chosen_sum += weights[r];
  }
  if (!renormalise) return;
  for (int r = 0; r < shape.top_k; ++r) weights[r] /= chosen_sum;
}

}  // namespace

void CpuOps::route(const float* logits, int tokens, const MoeShape& shape, bool renormalise,
                   const MoeRouting& routing) {
  VAMP_CHECK(shape.top_k >= 1 && shape.top_k <= shape.experts);
  std::vector<float> p(static_cast<size_t>(shape.experts));
  std::vector<int32_t> next(static_cast<size_t>(shape.experts) + 1, 0);
  for (int t = 0; t < tokens; ++t) {
    int32_t* chosen = routing.experts + int64_t{t} * shape.top_k;
    route_token(logits + int64_t{t} * shape.experts, shape, renormalise, p.data(), chosen,
                routing.weights + int64_t{t} * shape.top_k);
    for (int r = 0; r < shape.top_k; ++r) ++next[static_cast<size_t>(chosen[r]) + 1];
  }
  for (size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  std::copy(next.begin(), next.end(), routing.expert_start);
  for (int pair = 0; pair < tokens * shape.top_k; ++pair) {
    routing.pairs[next[static_cast<size_t>(routing.experts[pair])]++] = pair;
  }
}

// A row of `hidden` activations for every pair.
size_t CpuOps::moe_workspace_bytes(int tokens, const MoeShape& shape) const {
  return size_t{1} * static_cast<size_t>(tokens) * static_cast<size_t>(shape.top_k) *
         static_cast<size_t>(shape.hidden) * static_cast<size_t>(element_bytes(element_));
}

std::vector<CpuOps::ExpertBlock> CpuOps::expert_blocks(const MoeShape& shape,
                                                       const MoeRouting& routing,
                                                       std::span<const int32_t> subset) const {
  const int64_t row_bytes = int64_t{shape.hidden + shape.intermediate} * element_bytes(element_);
  const int most = static_cast<int>(std::max<int64_t>(32, kBlockBytes / row_bytes / 32 * 32));
  std::vector<ExpertBlock> blocks;
  for (const int32_t expert : subset) {
    const int begin = routing.expert_start[expert], end = routing.expert_start[expert + 1];
    const int count = end - begin, parts = (count + most - 1) / most;
    if (parts == 0) continue;
    const int step = ((count + parts - 1) / parts + 31) / 32 * 32;
    for (int first = begin; first < end; first += step) {
      blocks.push_back({expert, first, std::min(step, end - first)});
    }
  }
  return blocks;
}

void CpuOps::moe_experts(const void* x, int /*tokens*/, const MoeShape& shape,
                         const MoeWeights& weights, const MoeRouting& routing,
                         std::span<const int32_t> subset, void* workspace) {
  const Matmul& matmul = kernels_.matmul[static_cast<int>(element_of(weights.dtype))];
  std::vector<ExpertBlock> blocks = expert_blocks(shape, routing, subset);
  // Blocks go in waves whose scratch fits the cache; few tokens make one wave of all experts.
  const auto scratch_of = [&](const ExpertBlock& b) {
    const size_t packed = matmul.packed_bytes(b.rows, shape.hidden);
    const size_t h =
        std::max(matmul.packed_bytes(b.rows, shape.intermediate),
                 static_cast<size_t>(b.rows * shape.intermediate * element_bytes(element_)));
    return std::pair((packed + 63) / 64 * 64, (h + 63) / 64 * 64);
  };
  for (size_t first = 0; first < blocks.size();) {
    size_t bytes = 0, last = first;
    do {
      const auto [packed, h] = scratch_of(blocks[last]);
      bytes += packed + h;
      ++last;
      if (last == blocks.size()) break;
      const auto [next_packed, next_h] = scratch_of(blocks[last]);
      if (bytes + next_packed + next_h > static_cast<size_t>(kBlockBytes)) break;
    } while (true);
    char* memory = static_cast<char*>(packed_.get(bytes));
    for (size_t i = first; i < last; ++i) {
      const auto [packed, h] = scratch_of(blocks[i]);
      blocks[i].packed = memory;
      blocks[i].h = memory + packed;
      memory += packed + h;
    }
    run_expert_blocks(std::span(blocks).subspan(first, last - first), x, shape, weights, routing,
                      workspace);
    first = last;
  }
}

void CpuOps::run_expert_blocks(std::span<ExpertBlock> blocks, const void* x, const MoeShape& shape,
                               const MoeWeights& weights, const MoeRouting& routing,
                               void* workspace) {
  const Matmul& matmul = kernels_.matmul[static_cast<int>(element_of(weights.dtype))];
  const int64_t weight_bytes = element_bytes(element_of(weights.dtype));
  const int64_t half = int64_t{shape.intermediate} * shape.hidden * weight_bytes;
  const auto input_of = [&](const ExpertBlock& b) {
    return Input{
        {x, shape.hidden, routing.pairs + b.first, shape.top_k}, b.rows, shape.hidden, b.packed};
  };
  const auto run_pieces = [&](int columns, int64_t bytes, const auto& body) {
    pieces_.clear();
    for (size_t b = 0; b < blocks.size(); ++b) add_pieces(static_cast<int>(b), columns, bytes);
    pool_.parallel_for(static_cast<int>(pieces_.size()), [&](int i, int) {
      const Piece& piece = pieces_[static_cast<size_t>(i)];
      body(blocks[static_cast<size_t>(piece.what)], piece.begin, piece.end);
    });
  };

  if (matmul.packed_bytes(1, shape.hidden)) {
    pieces_.clear();
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int tiles = (blocks[b].rows + kRowTile - 1) / kRowTile;
      for (int t = 0; t < tiles; t += 4) {
        pieces_.push_back({static_cast<int>(b), t, std::min(tiles, t + 4)});
      }
    }
    pool_.parallel_for(static_cast<int>(pieces_.size()), [&](int i, int) {
      const Piece& piece = pieces_[static_cast<size_t>(i)];
      const ExpertBlock& b = blocks[static_cast<size_t>(piece.what)];
      matmul.pack(input_of(b), piece.begin, piece.end, b.packed);
    });
  }
  run_pieces(shape.intermediate, 2 * half, [&](const ExpertBlock& b, int begin, int end) {
    const char* gate = static_cast<const char*>(weights.gate_up) +
                       static_cast<size_t>(b.expert) * weights.gate_up_stride;
    matmul.gate_up(input_of(b), gate, gate + half, shape.intermediate, begin, end, b.h);
  });
  run_pieces(shape.hidden, half, [&](const ExpertBlock& b, int begin, int end) {
    const Input input{{b.h, shape.intermediate}, b.rows, shape.intermediate, b.h};
    const Product product{.weight = static_cast<const char*>(weights.down) +
                                    static_cast<size_t>(b.expert) * weights.down_stride,
                          .out = workspace,
                          .out_stride = shape.hidden,
                          .out_index = routing.pairs + b.first};
    matmul.multiply(input, product, begin, end);
  });
}

void CpuOps::moe_combine(const void* workspace, int tokens, const MoeShape& shape,
                         const MoeRouting& routing, void* residual) {
  for (int t = 0; t < tokens; ++t) {
    const int64_t pair = int64_t{t} * shape.top_k;
    kernels_.combine(at(workspace, pair * shape.hidden), routing.weights + pair, shape.top_k,
                     shape.hidden, static_cast<float*>(residual) + int64_t{t} * shape.hidden);
  }
}

}  // namespace vamp::cpu
