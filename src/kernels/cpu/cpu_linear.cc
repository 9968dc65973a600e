// Dense products and attention on the CPU: how they are cut into pieces.
#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/cpu_ops_impl.h"

namespace vamp::cpu {
namespace {

// Input rows worked on together: their (packed) elements stay in the second-level cache while the
// weights stream past.
constexpr int64_t kInputBytes = 1 << 20;
// The least weight bytes worth a piece of its own.
constexpr int64_t kPieceBytes = 64 << 10;
// Query rows of an attention task: enough to pay for loading each tile of keys.
constexpr int kQueryRows = 256;

}  // namespace

// Pieces of a product with `columns` outputs and `bytes` of weights: about four a thread.
void CpuOps::add_pieces(int what, int columns, int64_t bytes) {
  const int64_t most = pool_.threads() == 1 ? 1 : int64_t{4} * pool_.threads();
  const int64_t pieces = std::clamp<int64_t>(bytes / kPieceBytes, 1, most);
  const int64_t even = (columns + pieces - 1) / pieces;
  const int step = static_cast<int>((even + kColumnTile - 1) / kColumnTile * kColumnTile);
  for (int begin = 0; begin < columns; begin += step) {
    pieces_.push_back({what, begin, std::min(columns, begin + step)});
  }
}

void CpuOps::linear(const void* x, int64_t x_stride, int rows, std::span<const LinearPart> parts) {
  if (parts.empty() || rows == 0) return;
  const int k = parts.front().weight.cols;
  for (const LinearPart& part : parts) {
    VAMP_CHECK(part.weight.cols == k, "{} columns beside {}", part.weight.cols, k);
  }
  const int64_t fit = std::max<int64_t>(64, kInputBytes / (k * element_bytes(element_)) / 32 * 32);
  const int blocks = static_cast<int>((rows + fit - 1) / fit);
  const int step = (rows + blocks - 1) / blocks;
  const int aligned = (step + 31) / 32 * 32;
  for (int first = 0; first < rows; first += aligned) {
    linear_block(x, x_stride, first, std::min(aligned, rows - first), parts);
  }
}

void CpuOps::linear_block(const void* x, int64_t x_stride, int first, int rows,
                          std::span<const LinearPart> parts) {
  Input input{{at(x, first * x_stride), x_stride}, rows, parts.front().weight.cols};
  size_t packed_bytes = 0;
  const Matmul* packer = nullptr;
  pieces_.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    const WeightMatrix& w = parts[i].weight;
    const Matmul& matmul = kernels_.matmul[static_cast<int>(element_of(w.dtype))];
    if (const size_t bytes = matmul.packed_bytes(rows, input.k)) {
      packed_bytes = bytes;
      packer = &matmul;
    }
    add_pieces(static_cast<int>(i), w.rows,
               int64_t{w.rows} * w.cols * element_bytes(element_of(w.dtype)));
  }
  if (packer) {
    void* packed = packed_.get(packed_bytes);
    const int tiles = (rows + kRowTile - 1) / kRowTile;
    if (tiles < 4) {
      packer->pack(input, 0, tiles, packed);
    } else {
      pool_.parallel_for((tiles + 3) / 4, [&](int i, int) {
        packer->pack(input, 4 * i, std::min(tiles, 4 * i + 4), packed);
      });
    }
    input.packed = packed;
  }
  pool_.parallel_for(static_cast<int>(pieces_.size()), [&](int i, int) {
    const Piece& piece = pieces_[static_cast<size_t>(i)];
    const LinearPart& part = parts[static_cast<size_t>(piece.what)];
    const bool narrow = part.kind == LinearPart::Out::kActivation;
    const int64_t out_bytes = narrow ? element_bytes(element_) : 4;
    Product product{.weight = part.weight.data,
                    .bias = part.bias,
                    .out = static_cast<char*>(part.out) + first * part.out_stride * out_bytes,
                    .out_stride = part.out_stride,
                    .kind = narrow                                 ? Product::Out::kActivation
                            : part.kind == LinearPart::Out::kFloat ? Product::Out::kFloat
                                                                   : Product::Out::kAddFloat};
    kernels_.matmul[static_cast<int>(element_of(part.weight.dtype))].multiply(
        input, product, piece.begin, piece.end);
  });
}

void CpuOps::write_kv(const void* k, int64_t k_stride, const void* v, int64_t v_stride,
                      const SequenceBatch& batch, const KvCache& cache, int layer) {
  const KvLayout& kv = cache.layout;
  const Element type = element_of(kv.dtype);
  char* arena = static_cast<char*>(cache.arena);
  for (int s = 0; s < batch.num_sequences; ++s) {
    const int32_t* blocks = batch.block_ids + batch.block_start[s];
    for (int t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
      const int position = batch.positions[t];
      const int64_t block = blocks[position / kv.block_tokens] * kv.block_stride();
      for (int h = 0; h < kv.kv_heads; ++h) {
        const int64_t to = block + kv.k_offset(layer, h, position % kv.block_tokens);
        const int64_t from = int64_t{h} * kv.head_dim;
        kernels_.activation_to(at(k, t * k_stride + from), kv.head_dim, type,
                               arena + to * element_bytes(type));
        kernels_.activation_to(at(v, t * v_stride + from), kv.head_dim, type,
                               arena + (to + kv.v_offset()) * element_bytes(type));
      }
    }
  }
}

void CpuOps::attention(const void* q, int64_t q_stride, const SequenceBatch& batch,
                       const KvCache& cache, int layer, int num_heads, float scale, void* out,
                       int64_t out_stride) {
  const KvLayout& kv = cache.layout;
  VAMP_CHECK(num_heads % kv.kv_heads == 0, "{} heads, {} KV heads", num_heads, kv.kv_heads);
  const int group = num_heads / kv.kv_heads;
  const int chunk = std::max(1, kQueryRows / group);
  pieces_.clear();  // what = sequence
  for (int s = 0; s < batch.num_sequences; ++s) {
    for (int t = batch.query_start[s]; t < batch.query_start[s + 1]; t += chunk) {
      pieces_.push_back({s, t, std::min(batch.query_start[s + 1], t + chunk)});
    }
  }
  const size_t scratch_bytes = kernels_.attention_scratch_bytes(chunk * group, kv.head_dim);
  const Element type = element_of(kv.dtype);
  const int tasks = static_cast<int>(pieces_.size()) * kv.kv_heads;
  pool_.parallel_for(tasks, [&](int i, int worker) {
    const Piece& piece = pieces_[static_cast<size_t>(i / kv.kv_heads)];
    const int head = i % kv.kv_heads;
    const int64_t column = int64_t{head} * group * kv.head_dim;
    const AttentionTask task{.q = at(q, piece.begin * q_stride + column),
                             .q_stride = q_stride,
                             .out = at(out, piece.begin * out_stride + column),
                             .out_stride = out_stride,
                             .tokens = piece.end - piece.begin,
                             .first_position = batch.positions[piece.begin],
                             .group = group,
                             .head_dim = kv.head_dim,
                             .arena = static_cast<const char*>(cache.arena) +
                                      kv.k_offset(layer, head, 0) * element_bytes(type),
                             .block_stride = kv.block_stride(),
                             .v_offset = kv.v_offset(),
                             .blocks = batch.block_ids + batch.block_start[piece.what],
                             .block_tokens = kv.block_tokens,
                             .kv_type = type,
                             .scale = scale};
    kernels_.attention(task, scratch_[static_cast<size_t>(worker)].get(scratch_bytes));
  });
}

}  // namespace vamp::cpu
