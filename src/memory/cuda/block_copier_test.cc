#include "memory/cuda/block_copier.h"

#include "base/random.h"
#include "memory/cuda/cuda_test_support.h"

namespace vamp::test {
namespace {

class BlockCopierTest : public CudaTest, public testing::WithParamInterface<size_t> {};

// Blocks of a mapped run of several handles, so that some straddle two; the odd ones go to the
// host, the even ones come from it.
TEST_P(BlockCopierTest, CopiesWholeBlocksAndNothingElse) {
  const size_t bytes = GetParam();
  constexpr int kBlocks = 300;
  CudaVirtualMemory memory(0);
  const size_t page = memory.granularity();
  const size_t pages = (kBlocks * bytes + page - 1) / page;
  std::byte* range = memory.reserve(pages * page);
  std::vector<Handle> handles;
  for (size_t i = 0; i < pages; ++i) {
    handles.push_back(memory.create(page));
    memory.map(range + i * page, page, handles.back());
  }
  memory.set_access(range, pages * page);

  // 8-byte words that name side, block and place.
  const auto word = [](uint64_t side, uint64_t block, uint64_t i) {
    return side << 60 | block << 40 | i;
  };
  const auto fill = [&](std::byte* at, uint64_t side) {
    auto* words = reinterpret_cast<uint64_t*>(at);
    for (uint64_t b = 0; b < kBlocks; ++b)
      for (uint64_t i = 0; i < bytes / 8; ++i) *words++ = word(side, b, i);
  };
  PinnedBuffer host(kBlocks * bytes), start(kBlocks * bytes), end(kBlocks * bytes);
  fill(host.data(), 1);
  fill(start.data(), 2);
  check_cuda(cudaMemcpy(range, start.data(), kBlocks * bytes, cudaMemcpyHostToDevice),
             "a test's write");

  Random random(5);
  std::vector<int> place(kBlocks);  // device block b ↔ host block place[b]
  for (int b = 0; b < kBlocks; ++b) place[b] = b;
  for (int b = kBlocks - 1; b > 0; --b) std::swap(place[b], place[random.below(b + 1)]);
  std::vector<BlockCopyAddress> out, in;
  for (int b = 0; b < kBlocks; ++b)
    (b % 2 == 1 ? out : in).push_back({range + b * bytes, host.data() + place[b] * bytes});
  in.pop_back();  // one stays as it was, on both sides

  const BlockCopier copier(bytes);
  CudaStream stream;
  copier.to_host(out, stream.get());
  copier.to_device(in, stream.get());
  stream.synchronize("a test's copies");
  check_cuda(cudaMemcpy(end.data(), range, kBlocks * bytes, cudaMemcpyDeviceToHost),
             "a test's read");

  const auto holds = [&](const std::byte* at, uint64_t side, uint64_t block) {
    const auto* words = reinterpret_cast<const uint64_t*>(at);
    for (uint64_t i = 0; i < bytes / 8; ++i)
      if (words[i] != word(side, block, i)) return false;
    return true;
  };
  for (int b = 0; b < kBlocks; ++b) {
    const bool goes_out = b % 2 == 1, comes_in = !goes_out && b != 298;
    EXPECT_TRUE(holds(end.data() + b * bytes, comes_in ? 1 : 2, comes_in ? place[b] : b)) << b;
    EXPECT_TRUE(holds(host.data() + place[b] * bytes, goes_out ? 2 : 1, goes_out ? b : place[b]))
        << b;
  }
  memory.unmap(range, pages * page);
  for (const Handle handle : handles) memory.destroy(handle);
  memory.release(range, pages * page);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockCopierTest,
                         testing::Values(16, 4096, 65552, 192 << 10, 768 << 10, 3 << 20));

}  // namespace
}  // namespace vamp::test
