#include "exec/host_tier_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"

namespace vamp {
namespace {

void write_and_read(const HostTierMemory& tier, size_t block_bytes) {
  for (int b = 0; b < tier.blocks(); ++b) std::memset(tier.block(b), b + 1, block_bytes);
  for (int b = 0; b < tier.blocks(); ++b) {
    EXPECT_EQ(tier.block(b)[0], std::byte(b + 1));
    EXPECT_EQ(tier.block(b)[block_bytes - 1], std::byte(b + 1));
  }
}

TEST(HostTierMemory, HoldsWholeBlocks) {
  HostTierMemory tier(10'000, 3000, {});
  ASSERT_EQ(tier.blocks(), 3);
  write_and_read(tier, 3000);
  EXPECT_THROW(tier.block(3), InvariantError);
  EXPECT_EQ(HostTierMemory(0, 3000, {}).blocks(), 0);
}

TEST(HostTierMemory, AFileIsThereAsLongAsTheTier) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "host_tier_test.kv";
  {
    HostTierMemory tier(10'000, 3000, file);
    EXPECT_EQ(std::filesystem::file_size(file), 9000u);
    write_and_read(tier, 3000);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(HostTierMemory, AFileThatCannotBeMadeIsAnError) {
  EXPECT_THROW(HostTierMemory(10'000, 3000, "/nonexistent/kv"), Error);
  // More than any file system holds.
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "host_tier_huge.kv";
  EXPECT_THROW(HostTierMemory(size_t{1} << 60, size_t{1} << 40, file), Error);
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace vamp
