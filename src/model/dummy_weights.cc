#include "model/dummy_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace vamp {
namespace {

__extension__ using Half = _Float16;

constexpr double kMatrixGain = 1.5;
constexpr double kLogitStd = 3.0;
constexpr double kNormStd = 0.1;
constexpr double kBiasStd = 0.5;

// FNV-1a: the same on every platform.
uint64_t hash_name(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

struct Distribution {
  double mean = 0, std = 1;
};

bool is_norm(TensorRole role) {
  return role == TensorRole::kFinalNorm || role == TensorRole::kInputNorm ||
         role == TensorRole::kPostAttentionNorm || role == TensorRole::kQNorm ||
         role == TensorRole::kKNorm || role == TensorRole::kLinearNorm;
}

Distribution distribution(const TensorSpec& spec, bool tied, bool one_plus_weight) {
  const auto inputs = static_cast<double>(spec.shape.back());
  if (is_norm(spec.role)) {
    // The Gated DeltaNet's own norm is a plain one in every model.
    return {one_plus_weight && spec.role != TensorRole::kLinearNorm ? 0.0 : 1.0, kNormStd};
  }
  if (spec.role == TensorRole::kEmbedding && !tied) return {0, 1};
  if (spec.role == TensorRole::kEmbedding || spec.role == TensorRole::kLmHead) {
    return {0, kLogitStd / std::sqrt(inputs)};
  }
  if (spec.role == TensorRole::kLinearConv) return {0, 1 / std::sqrt(inputs)};
  if (spec.shape.size() == 1) return {0, kBiasStd};
  return {0, kMatrixGain / std::sqrt(inputs)};
}

template <typename Store>
void fill_uniform(Random& random, Distribution wanted, size_t count, Store store) {
  // A signed 16-bit integer is uniform with a standard deviation of 2^16 / sqrt(12).
  const auto scale = static_cast<float>(wanted.std * std::sqrt(12.0) / 65536.0);
  const auto mean = static_cast<float>(wanted.mean);
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t bits = random.next();
    for (size_t k = 0; k < std::min<size_t>(4, count - i); ++k) {
      const auto value = static_cast<float>(static_cast<int16_t>(bits >> (16 * k)));
      store(i + k, value * scale + mean);
    }
  }
}

void store_bf16(std::byte* to, float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  bits += 0x7FFF + (bits >> 16 & 1);  // to nearest, ties to even
  const auto rounded = static_cast<uint16_t>(bits >> 16);
  std::memcpy(to, &rounded, sizeof rounded);
}

void store_value(std::byte* data, DType dtype, size_t index, float value) {
  std::byte* to = data + index * dtype_bytes(dtype);
  if (dtype == DType::kBf16) {
    store_bf16(to, value);
  } else if (dtype == DType::kF16) {
    const auto half = static_cast<Half>(value);
    std::memcpy(to, &half, sizeof half);
  } else {
    std::memcpy(to, &value, sizeof value);
  }
}

}  // namespace

DummyWeights::DummyWeights(const ModelConfig& model, uint64_t seed)
    : dtype_(model.dtype),
      tied_(model.tie_word_embeddings),
      norm_one_plus_weight_(model.norm_one_plus_weight),
      seed_(seed) {
  for (TensorSpec& spec : checkpoint_tensors(model, ExpertFormat::kPerExpert)) {
    std::string name = spec.name;
    specs_.emplace(std::move(name), std::move(spec));
  }
}

std::optional<TensorInfo> DummyWeights::describe(const std::string& name) const {
  const auto found = specs_.find(name);
  if (found == specs_.end()) return std::nullopt;
  return TensorInfo{dtype_, found->second.shape, found->second.elements() * dtype_bytes(dtype_)};
}

std::optional<TensorView> DummyWeights::find(const std::string& name) const {
  std::optional<TensorInfo> info = describe(name);
  if (!info) return std::nullopt;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<std::byte[]>& data = made_[name];
  if (!data) {
    data = std::make_unique_for_overwrite<std::byte[]>(info->bytes);
    fill(specs_.at(name), data.get());
  }
  return TensorView{std::move(*info), data.get()};
}

void DummyWeights::release(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  made_.erase(name);
}

std::string DummyWeights::description() const {
  return fmt::format("random weights of seed {}", seed_);
}

void DummyWeights::fill(const TensorSpec& spec, std::byte* data) const {
  Random random(Random(seed_).next() ^ hash_name(spec.name));
  const size_t count = spec.elements();
  if (spec.role == TensorRole::kLinearALog) {  // decay rates, spread as the models' own start
    for (size_t i = 0; i < count; ++i) {
      const double rate = 0.05 + 3.95 * random.uniform();
      store_value(data, dtype_, i, static_cast<float>(std::log(rate)));
    }
    return;
  }
  const Distribution wanted = distribution(spec, tied_, norm_one_plus_weight_);
  // The common type on its own, so that the compiler can unroll it.
  if (dtype_ == DType::kBf16) {
    fill_uniform(random, wanted, count,
                 [&](size_t i, float value) { store_bf16(data + 2 * i, value); });
    return;
  }
  fill_uniform(random, wanted, count,
               [&](size_t i, float value) { store_value(data, dtype_, i, value); });
}

}  // namespace vamp
