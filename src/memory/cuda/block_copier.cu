#include <algorithm>

#include "memory/cuda/block_copier.h"
#include "memory/cuda/cuda_error.h"

namespace vamp {
namespace {

constexpr int kBatch = 128;

// By value, so that a batch needs no buffer that must outlive the launch: 2 KiB.
struct Batch {
  struct {
    const std::byte* from;
    std::byte* to;
  } blocks[kBatch];
  int count;
  uint32_t block_bytes;
  uint32_t stage_bytes;
  int stages;
};

__global__ __launch_bounds__(kBulkCopyThreads) void copy_blocks_kernel(Batch batch) {
  extern __shared__ __align__(128) std::byte ring[];
  if (threadIdx.x != 0) return;
  const uint32_t pieces =
      (batch.block_bytes + batch.stage_bytes - 1) / batch.stage_bytes;  // of a block
  const auto piece_at = [&](uint32_t i) {
    const auto& block = batch.blocks[i / pieces];
    const uint32_t offset = i % pieces * batch.stage_bytes;
    return BulkPiece{block.from + offset, block.to + offset,
                     min(batch.stage_bytes, batch.block_bytes - offset)};
  };
  bulk_copy(piece_at, pieces * static_cast<uint32_t>(batch.count), ring, batch.stage_bytes,
            batch.stages);
}

}  // namespace

BlockCopier::BlockCopier(size_t block_bytes, BulkCopyShape shape)
    : block_bytes_(block_bytes), shape_(shape) {
  VAMP_CHECK(block_bytes > 0 && block_bytes % 16 == 0, "KV blocks of {} bytes", block_bytes);
  check_bulk_copy_shape(shape);
  check_cuda(cudaFuncSetAttribute(copy_blocks_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shape.shared_bytes())),
             "taking shared memory for the KV block copy");
}

void BlockCopier::to_host(std::span<const BlockCopyAddress> blocks, cudaStream_t stream) const {
  copy(blocks, Direction::kToHost, stream);
}

void BlockCopier::to_device(std::span<const BlockCopyAddress> blocks, cudaStream_t stream) const {
  copy(blocks, Direction::kToDevice, stream);
}

void BlockCopier::copy(std::span<const BlockCopyAddress> blocks, Direction direction,
                       cudaStream_t stream) const {
  const bool to_host = direction == Direction::kToHost;
  if (block_bytes_ >= kCopyEngineBytes) {
    for (const BlockCopyAddress& block : blocks)
      check_cuda(cudaMemcpyAsync(to_host ? block.host : block.device,
                                 to_host ? block.device : block.host, block_bytes_,
                                 to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
                 "copying a KV block");
    return;
  }
  for (size_t first = 0; first < blocks.size(); first += kBatch) {
    Batch batch;
    batch.count = static_cast<int>(std::min<size_t>(kBatch, blocks.size() - first));
    batch.block_bytes = static_cast<uint32_t>(block_bytes_);
    batch.stage_bytes = shape_.stage_bytes;
    batch.stages = shape_.stages;
    for (int i = 0; i < batch.count; ++i) {
      const BlockCopyAddress& block = blocks[first + static_cast<size_t>(i)];
      batch.blocks[i].from = to_host ? block.device : block.host;
      batch.blocks[i].to = to_host ? block.host : block.device;
    }
    launch_bulk_copy(copy_blocks_kernel, shape_, batch, stream);
  }
}

}  // namespace vamp
