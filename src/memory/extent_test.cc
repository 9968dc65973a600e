#include "memory/extent.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "memory/host_virtual_memory.h"

namespace vamp {
namespace {

TEST(Extent, IsHeldByOneAndSumsUp) {
  HostVirtualMemory memory({.capacity = 4 * 4096});
  ExtentLedger ledger;
  {
    Extent a(memory, ledger, 4096), b(memory, ledger, 2 * 4096);
    EXPECT_EQ(ledger.held(Holder::kFree), 3u * 4096);
    a.hand_to(Holder::kKvArena);
    EXPECT_EQ(ledger.held(Holder::kKvArena), 4096u);

    const Handle handle = a.handle();
    Extent c = std::move(a);
    EXPECT_FALSE(a);  // NOLINT: that it is empty is the point
    EXPECT_EQ(c.handle(), handle);
    EXPECT_EQ(c.holder(), Holder::kKvArena);
    EXPECT_EQ(ledger.created(), 3u * 4096);

    EXPECT_THROW(Extent(memory, ledger, 2 * 4096), Error);  // over the budget
    EXPECT_EQ(ledger.created(), 3u * 4096);
    c = Extent(memory, ledger, 4096);  // what c had goes back
    EXPECT_EQ(ledger.created(), 3u * 4096);
    EXPECT_EQ(ledger.held(Holder::kKvArena), 0u);
  }
  EXPECT_EQ(ledger.created(), 0u);
  EXPECT_EQ(memory.created_bytes(), 0u);
}

}  // namespace
}  // namespace vamp
