#include "exec/kv_copier.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "memory/host_virtual_memory.h"
#include "memory/memory_test_support.h"

namespace vamp {
namespace {

// A partition whose pool holds some blocks, and a host tier of eight.
class KvCopierTest : public testing::Test {
 protected:
  KvCopierTest()
      : layout_(test::small_layout()),
        experts_(layout_),
        partition_(layout_, layout_.max_groups_out(), memory_, experts_),
        host_(8 * layout_.block_bytes, layout_.block_bytes, {}),
        copier_(partition_.kv(), layout_.block_bytes, host_, clock_) {}

  std::byte* device(BlockId id) { return partition_.kv().block(id); }
  void fill(std::byte* block, int value) { std::memset(block, value, layout_.block_bytes); }
  bool filled(const std::byte* block, int value) {
    for (size_t i = 0; i < layout_.block_bytes; ++i) {
      if (block[i] != std::byte(value)) return false;
    }
    return true;
  }
  // All that ends until nothing is left to do.
  KvCopier::Finished finish(size_t copies) {
    KvCopier::Finished all;
    while (all.demoted.size() + all.promoted.size() < copies) {
      copier_.wait_for_one();
      KvCopier::Finished some = copier_.take_finished();
      all.demoted.insert(all.demoted.end(), some.demoted.begin(), some.demoted.end());
      all.promoted.insert(all.promoted.end(), some.promoted.begin(), some.promoted.end());
    }
    return all;
  }

  HostVirtualMemory memory_;
  MemoryLayout layout_;
  test::PatternExperts experts_;
  HbmPartition partition_;
  HostTierMemory host_;
  RealClock clock_;
  KvCopier copier_;
};

TEST_F(KvCopierTest, CopiesBothWaysInOrder) {
  fill(device(1), 11);
  const BlockCopy out{1, 3}, back{2, 3};
  copier_.start(1, {{out}}, {});
  copier_.start(2, {}, {{back}});
  const KvCopier::Finished done = finish(2);
  EXPECT_EQ(done.demoted, std::vector<BlockCopy>{out});
  EXPECT_EQ(done.promoted, std::vector<BlockCopy>{back});
  EXPECT_TRUE(filled(device(2), 11));
  copier_.wait_for_one();  // nothing is left: returns
  EXPECT_TRUE(copier_.take_finished().demoted.empty());
}

TEST_F(KvCopierTest, APauseHoldsCopiesBack) {
  fill(device(1), 7);
  fill(host_.block(0), 0);
  copier_.pause();
  const BlockCopy copy{1, 0};
  copier_.start(1, {{copy}}, {});
  EXPECT_TRUE(filled(host_.block(0), 0));
  fill(device(1), 8);
  copier_.resume();
  finish(1);
  EXPECT_TRUE(filled(host_.block(0), 8));
}

TEST_F(KvCopierTest, ALostStepsCopiesDoNotHappen) {
  copier_.pause();
  const BlockCopy kept{0, 0}, lost{1, 1};
  copier_.start(1, {{kept}}, {});
  copier_.start(2, {{lost}}, {{lost}});
  copier_.cancel(2);  // and resumes
  const KvCopier::Finished done = finish(1);
  EXPECT_EQ(done.demoted, std::vector<BlockCopy>{kept});
  copier_.wait_for_one();
  EXPECT_TRUE(copier_.take_finished().promoted.empty());

  // Copies that ended before their step was lost are forgotten.
  copier_.start(3, {{lost}}, {});
  copier_.wait_for_one();
  copier_.cancel(3);
  EXPECT_TRUE(copier_.take_finished().demoted.empty());
}

TEST_F(KvCopierTest, BlocksThatDoNotExistAreABrokenInvariant) {
  const BlockCopy no_host{0, 8}, no_device{layout_.max_blocks() + 1, 0};
  EXPECT_THROW(copier_.start(1, {{no_host}}, {}), InvariantError);
  EXPECT_THROW(copier_.start(1, {}, {{no_device}}), InvariantError);
}

}  // namespace
}  // namespace vamp
