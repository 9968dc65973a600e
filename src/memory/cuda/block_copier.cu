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
};

__global__ __launch_bounds__(512) void copy_blocks_kernel(const __grid_constant__ Batch batch) {
  const uint32_t pieces =
      (batch.block_bytes + kLinkPieceBytes - 1) / kLinkPieceBytes;  // of a block
  const auto piece_at = [&](uint32_t i) {
    const auto& block = batch.blocks[i / pieces];
    const uint32_t offset = i % pieces * kLinkPieceBytes;
    return LinkPiece{block.from + offset, block.to + offset,
                     min(kLinkPieceBytes, batch.block_bytes - offset)};
  };
  link_copy(piece_at, pieces * static_cast<uint32_t>(batch.count));
}

}  // namespace

BlockCopier::BlockCopier(size_t block_bytes, LinkCopyShape shape)
    : block_bytes_(block_bytes), shape_(shape) {
  VAMP_CHECK(block_bytes > 0 && block_bytes % 16 == 0, "KV blocks of {} bytes", block_bytes);
  check_link_copy_shape(shape);
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
    for (int i = 0; i < batch.count; ++i) {
      const BlockCopyAddress& block = blocks[first + static_cast<size_t>(i)];
      batch.blocks[i].from = to_host ? block.device : block.host;
      batch.blocks[i].to = to_host ? block.host : block.device;
    }
    launch_link_copy(copy_blocks_kernel, shape_, batch, stream);
  }
}

}  // namespace vamp
