// Where weights come from: a checkpoint's files (SafetensorsReader) or a seed (DummyWeights).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace vamp {

struct TensorInfo {
  DType dtype = DType::kBf16;
  std::vector<size_t> shape;
  size_t bytes = 0;  // product of shape x dtype_bytes(dtype)
};

// One tensor, row-major, without gaps. `data` may have any alignment: read it with memcpy.
struct TensorView : TensorInfo {
  const std::byte* data = nullptr;
};

// All of it may be called from several threads at once.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Both give nothing when there is no such tensor, and throw Error when it is there with a type
  // that is none of DType. describe() touches no data. A view lives as long as the source, or until
  // release() is called for the tensor.
  virtual std::optional<TensorInfo> describe(const std::string& name) const = 0;
  virtual std::optional<TensorView> find(const std::string& name) const = 0;

  // Says that the tensor will not be read again soon: its memory may be given back. find() it anew
  // before reading it again.
  virtual void release(const std::string& name) const = 0;

  // For messages: the folder, or what makes the weights.
  virtual std::string description() const = 0;
};

}  // namespace vamp
