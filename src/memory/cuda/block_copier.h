// KV blocks between the device and pinned host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "memory/cuda/link_copy.h"

namespace vamp {

struct BlockCopyAddress {
  std::byte* device = nullptr;
  std::byte* host = nullptr;  // pinned
};

// Copies batches of whole blocks; a block is contiguous on both sides. Large blocks go by the copy
// engine, one copy each; below kCopyEngineBytes, where its cost per copy shows, a kernel of eight
// blocks gathers or scatters the whole batch. Asynchronous on `stream`: the caller's events say
// when the bytes may be read or the source reused. Not for graphs: batches differ from step to
// step. One thread.
class BlockCopier {
 public:
  static constexpr size_t kCopyEngineBytes = size_t{3} << 20;

  // `block_bytes`: a multiple of 16.
  explicit BlockCopier(size_t block_bytes, LinkCopyShape shape = {});

  void to_host(std::span<const BlockCopyAddress> blocks, cudaStream_t stream) const;
  void to_device(std::span<const BlockCopyAddress> blocks, cudaStream_t stream) const;

 private:
  enum class Direction { kToHost, kToDevice };
  void copy(std::span<const BlockCopyAddress> blocks, Direction direction,
            cudaStream_t stream) const;

  size_t block_bytes_;
  LinkCopyShape shape_;
};

}  // namespace vamp
