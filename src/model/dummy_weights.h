// Random weights made from a config alone (--load-format dummy), for measuring without a
// checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "model/checkpoint_tensors.h"
#include "model/tensor_source.h"

namespace vamp {

// Every tensor that a hub checkpoint of the model would hold, a function of (seed, tensor name)
// alone. A tensor is made when it is first asked for and kept until it is released. Matrices are
// uniform with a scale that keeps that of their input, so that outputs vary; norms lie around 1.
// Any thread.
class DummyWeights final : public TensorSource {
 public:
  DummyWeights(const ModelConfig& model, uint64_t seed);

  std::optional<TensorInfo> describe(const std::string& name) const override;
  std::optional<TensorView> find(const std::string& name) const override;
  void release(const std::string& name) const override;
  std::string description() const override;

 private:
  void fill(const TensorSpec& spec, std::byte* data) const;

  DType dtype_;
  bool tied_;
  bool norm_one_plus_weight_;
  uint64_t seed_;
  std::unordered_map<std::string, TensorSpec> specs_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::unique_ptr<std::byte[]>> made_;  // under mutex_
};

}  // namespace vamp
