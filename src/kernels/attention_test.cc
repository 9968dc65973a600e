#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/test_support.h"

namespace vamp::test {
namespace {

// Sequences with their keys and values in a paged arena, blocks in random order.
class PagedSequences {
 public:
  PagedSequences(const KvLayout& layout, int heads, DType activation, std::vector<int> lengths,
                 Random& random)
      : layout_(layout), heads_(heads), activation_(activation), lengths_(std::move(lengths)) {
    int blocks = 3;  // some stay unused
    for (const int n : lengths_) blocks += (n + layout.block_tokens - 1) / layout.block_tokens;
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    arena_ = Tensor(layout.dtype, static_cast<size_t>(blocks * layout.block_stride()));
    // What was never written must never be read into a result.
    for (size_t i = 0; i < arena_.size(); ++i) {
      arena_.set(i, std::numeric_limits<float>::quiet_NaN());
    }
    for (const int n : lengths_) {
      const int count = (n + layout.block_tokens - 1) / layout.block_tokens;
      tables_.emplace_back(order.end() - count, order.end());
      order.resize(order.size() - static_cast<size_t>(count));
      const auto tokens = static_cast<size_t>(n);
      const auto kv = static_cast<size_t>(layout.kv_heads * layout.head_dim);
      q_.push_back(Tensor::random(activation, tokens * q_width(), random));
      k_.push_back(Tensor::random(activation, tokens * kv, random));
      v_.push_back(Tensor::random(activation, tokens * kv, random));
    }
  }

  size_t q_width() const { return static_cast<size_t>(heads_ * layout_.head_dim); }
  int sequences() const { return static_cast<int>(lengths_.size()); }
  int length(int s) const { return lengths_[static_cast<size_t>(s)]; }

  struct Chunk {
    int sequence, first, count;
  };
  // One step over the chunks: writes their keys and values and attends. Rows of all chunks in
  // order.
  Tensor step(Ops& ops, int layer, const std::vector<Chunk>& chunks) {
    std::vector<int32_t> positions, query_start = {0}, block_start = {0}, block_ids;
    const auto kv = static_cast<size_t>(layout_.kv_heads * layout_.head_dim);
    size_t rows = 0;
    for (const Chunk& c : chunks) rows += static_cast<size_t>(c.count);
    Tensor q(activation_, rows * q_width()), k(activation_, rows * kv), v(activation_, rows * kv);
    size_t row = 0;
    for (const Chunk& c : chunks) {
      const auto s = static_cast<size_t>(c.sequence);
      for (int i = 0; i < c.count; ++i, ++row) {
        const auto token = static_cast<size_t>(c.first + i);
        positions.push_back(c.first + i);
        std::memcpy(q.at(row * q_width()), q_[s].at(token * q_width()), q_width() * q.width());
        std::memcpy(k.at(row * kv), k_[s].at(token * kv), kv * k.width());
        std::memcpy(v.at(row * kv), v_[s].at(token * kv), kv * v.width());
      }
      query_start.push_back(static_cast<int32_t>(row));
      block_ids.insert(block_ids.end(), tables_[s].begin(), tables_[s].end());
      block_start.push_back(static_cast<int32_t>(block_ids.size()));
    }
    const SequenceBatch batch{static_cast<int>(rows), static_cast<int>(chunks.size()),
                              positions.data(),       query_start.data(),
                              block_start.data(),     block_ids.data()};
    const KvCache cache{arena_.data(), layout_};
    Tensor out(activation_, rows * q_width());
    const auto width = static_cast<int64_t>(kv);
    ops.write_kv(k.data(), width, v.data(), width, batch, cache, layer);
    ops.attention(q.data(), static_cast<int64_t>(q_width()), batch, cache, layer, heads_, scale(),
                  out.data(), static_cast<int64_t>(q_width()));
    return out;
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(layout_.head_dim)); }

  // Exact attention of one token, in double, over keys and values as the cache rounds them.
  std::vector<double> reference(int sequence, int token) const {
    const auto s = static_cast<size_t>(sequence);
    const auto d = static_cast<size_t>(layout_.head_dim);
    const auto kv = static_cast<size_t>(layout_.kv_heads) * d;
    const int group = heads_ / layout_.kv_heads;
    std::vector<double> out;
    for (int h = 0; h < heads_; ++h) {
      const size_t q0 = static_cast<size_t>(token) * q_width() + static_cast<size_t>(h) * d;
      const size_t head = static_cast<size_t>(h / group) * d;
      std::vector<double> p;
      for (size_t t = 0; t <= static_cast<size_t>(token); ++t) {
        double dot = 0;
        for (size_t i = 0; i < d; ++i) {
          dot += static_cast<double>(q_[s][q0 + i]) * cached(k_[s][t * kv + head + i]);
        }
        p.push_back(dot * static_cast<double>(scale()));
      }
      const double max = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - max);
      for (size_t i = 0; i < d; ++i) {
        double value = 0;
        for (size_t t = 0; t < p.size(); ++t) value += p[t] * cached(v_[s][t * kv + head + i]);
        out.push_back(value / sum);
      }
    }
    return out;
  }

 private:
  double cached(float x) const {
    return static_cast<double>(layout_.dtype == DType::kBf16 ? bf16_to_float(float_to_bf16(x)) : x);
  }

  KvLayout layout_;
  int heads_;
  DType activation_;
  std::vector<int> lengths_;
  Tensor arena_{DType::kF32, 0};
  std::vector<std::vector<int32_t>> tables_;
  std::vector<Tensor> q_, k_, v_;
};

using Chunk = PagedSequences::Chunk;

class AttentionTest : public KernelsTest {};

TEST_P(AttentionTest, MatchesTheReference) {
  struct Case {
    int heads, kv_heads, dim, block;
  };
  for (const Case& c : {Case{9, 3, 64, 16}, Case{4, 4, 16, 7}, Case{8, 1, 128, 16},
                        Case{2, 1, 24, 5}, Case{3, 1, 40, 32}}) {
    for (const DType kv : {DType::kBf16, DType::kF32}) {
      const KvLayout layout{2, c.kv_heads, c.dim, c.block, kv};
      PagedSequences paged(layout, c.heads, activation(), {1, 63, 64, 65, 100}, random_);
      const auto ops = GetParam().make(2);
      const Tensor out =
          paged.step(*ops, 1, {{0, 0, 1}, {1, 0, 63}, {2, 0, 64}, {3, 0, 65}, {4, 0, 100}});
      size_t row = 0;
      for (int s = 0; s < paged.sequences(); ++s) {
        for (int t = 0; t < paged.length(s); ++t, ++row) {
          if (t % 31 != 0 && t + 1 != paged.length(s)) continue;
          const std::vector<double> want = paged.reference(s, t);
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(out[row * paged.q_width() + i], want[i],
                        static_cast<double>(tolerance(std::abs(want[i]) + 1)))
                << "heads " << c.heads << "/" << c.kv_heads << " sequence " << s << " token " << t;
          }
        }
      }
    }
  }
}

// Whole prompts, random chunks of several sequences at once and one token at a time give one
// result.
TEST_P(AttentionTest, TokensDoNotDependOnBatchOrChunks) {
  const KvLayout layout{1, 2, 32, 16, activation() == DType::kBf16 ? DType::kBf16 : DType::kF32};
  PagedSequences paged(layout, 6, activation(), {1, 40, 70, 150}, random_);
  const auto single = GetParam().make(1), threaded = GetParam().make(3);
  std::vector<std::string> alone(4);
  for (int s = 0; s < 4; ++s) {
    for (int t = 0; t < paged.length(s); ++t) {
      alone[static_cast<size_t>(s)] += paged.step(*single, 0, {{s, t, 1}}).bits();
    }
  }
  for (int round = 0; round < 5; ++round) {
    Ops& ops = round % 2 ? *single : *threaded;
    std::vector<int> done(4, 0);
    std::vector<std::string> got(4);
    for (;;) {
      std::vector<Chunk> chunks;
      for (int s = 0; s < 4; ++s) {
        const int left = paged.length(s) - done[static_cast<size_t>(s)];
        if (left == 0 || random_.chance(0.3)) continue;
        const int most = round < 2 ? left : std::min(left, round == 4 ? 3 : 70);
        chunks.push_back(
            {s, done[static_cast<size_t>(s)],
             round == 0 ? left : 1 + static_cast<int>(random_.below(static_cast<uint64_t>(most)))});
      }
      const Tensor out = paged.step(ops, 0, chunks);
      size_t row = 0;
      for (const Chunk& c : chunks) {
        const auto s = static_cast<size_t>(c.sequence);
        got[s] += out.bits(row * paged.q_width(), static_cast<size_t>(c.count) * paged.q_width());
        row += static_cast<size_t>(c.count);
        done[s] += c.count;
      }
      if (got[0].size() + got[1].size() + got[2].size() + got[3].size() ==
          alone[0].size() + alone[1].size() + alone[2].size() + alone[3].size()) {
        break;
      }
    }
    for (size_t s = 0; s < 4; ++s) ASSERT_TRUE(got[s] == alone[s]) << "sequence " << s;
  }
}

TEST_P(AttentionTest, LongContextDecode) {
  const KvLayout layout{1, 1, 64, 16, DType::kBf16};
  PagedSequences paged(layout, 3, activation(), {700}, random_);
  const auto ops = GetParam().make();
  paged.step(*ops, 0, {{0, 0, 690}});
  const Tensor out = paged.step(*ops, 0, {{0, 690, 10}});
  const std::vector<double> want = paged.reference(0, 699);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(out[9 * paged.q_width() + i], want[i], static_cast<double>(tolerance(0.3)));
  }
}

VAMP_INSTANTIATE_KERNELS_TEST(AttentionTest);

}  // namespace
}  // namespace vamp::test
