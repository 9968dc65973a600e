#include "memory/virtual_memory_decorators.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "memory/host_virtual_memory.h"

namespace vamp {
namespace {

constexpr size_t kPage = 4096;

class ShadowTest : public testing::Test {
 protected:
  HostVirtualMemory host_;
  FailingVirtualMemory failing_{host_};
  ShadowVirtualMemory shadow_{failing_};
  std::byte* range_ = shadow_.reserve(8 * kPage);
  Handle one_ = shadow_.create(kPage), two_ = shadow_.create(2 * kPage);
};

TEST_F(ShadowTest, FindsEveryBreachOfTheContract) {
  shadow_.map(range_, kPage, one_);
  shadow_.map(range_ + kPage, 2 * kPage, two_);
  const ShadowVirtualMemory::Table before = shadow_.table();

  EXPECT_THROW(shadow_.create(100), InvariantError);
  EXPECT_THROW(shadow_.create(0), InvariantError);
  EXPECT_THROW(shadow_.map(range_ + 4 * kPage + 1, kPage, one_), InvariantError);
  EXPECT_THROW(shadow_.map(range_ + 4 * kPage, kPage, two_), InvariantError);  // a part of a handle
  EXPECT_THROW(shadow_.map(range_ + 4 * kPage, kPage, Handle{99}), InvariantError);
  EXPECT_THROW(shadow_.map(range_, kPage, one_), InvariantError);  // over a mapping
  EXPECT_THROW(shadow_.map(range_ + 2 * kPage, kPage, one_), InvariantError);
  EXPECT_THROW(shadow_.map(range_ + 7 * kPage, 2 * kPage, two_), InvariantError);  // past the range
  EXPECT_THROW(shadow_.unmap(range_ + kPage, kPage), InvariantError);  // a part of a mapping
  EXPECT_THROW(shadow_.unmap(range_ + 2 * kPage, kPage), InvariantError);
  EXPECT_THROW(shadow_.unmap(range_, 4 * kPage), InvariantError);  // a hole in the run
  EXPECT_THROW(shadow_.set_access(range_, 4 * kPage), InvariantError);
  EXPECT_THROW(shadow_.zero(range_, kPage), InvariantError);  // no access yet
  EXPECT_THROW(shadow_.destroy(one_), InvariantError);        // mapped
  EXPECT_THROW(shadow_.release(range_, 8 * kPage), InvariantError);
  EXPECT_THROW(shadow_.release(range_, 4 * kPage), InvariantError);
  shadow_.set_access(range_ + kPage, 2 * kPage);
  EXPECT_THROW(shadow_.zero(range_, 2 * kPage), InvariantError);
  shadow_.zero(range_ + kPage + 8, 2 * kPage - 8);

  EXPECT_TRUE(shadow_.at(range_ + 2 * kPage)->accessible);
  EXPECT_FALSE(shadow_.at(range_ + 3 * kPage).has_value());
  shadow_.unmap(range_, 3 * kPage);
  shadow_.destroy(one_);
  EXPECT_THROW(shadow_.destroy(one_), InvariantError);
}

TEST_F(ShadowTest, StaysAsItWasWhenTheCallFails) {
  shadow_.map(range_, kPage, one_);
  const ShadowVirtualMemory::Table before = shadow_.table();
  for (int call = 0; call < 4; ++call) {
    failing_.arm(1);
    switch (call) {
      case 0:
        EXPECT_THROW(shadow_.map(range_ + kPage, 2 * kPage, two_), Error);
        break;
      case 1:
        EXPECT_THROW(shadow_.unmap(range_, kPage), Error);
        break;
      case 2:
        EXPECT_THROW(shadow_.set_access(range_, kPage), Error);
        break;
      case 3:
        EXPECT_THROW(shadow_.create(kPage), Error);
        break;
    }
    EXPECT_EQ(shadow_.table(), before);
  }
  EXPECT_EQ(shadow_.handles(), 2u);
}

TEST_F(ShadowTest, HashesAgreeForTheSameCallsAndDifferOtherwise) {
  HostVirtualMemory other_host;
  ShadowVirtualMemory other(other_host);
  std::byte* range = other.reserve(8 * kPage);
  const Handle one = other.create(kPage);
  const Handle two = other.create(2 * kPage);
  EXPECT_EQ(shadow_.hash(), other.hash());
  shadow_.map(range_, kPage, one_);
  EXPECT_NE(shadow_.hash(), other.hash());
  other.map(range + kPage, kPage, one);
  EXPECT_NE(shadow_.hash(), other.hash());
  other.map(range + 2 * kPage, 2 * kPage, two);
  other.unmap(range + kPage, 3 * kPage);
  other.map(range, kPage, one);
  EXPECT_EQ(shadow_.hash(), other.hash());
}

TEST(FailingVirtualMemory, FailsThoseCallsAndNoOthers) {
  HostVirtualMemory host;
  FailingVirtualMemory failing(host);
  failing.arm(3, 2);
  const Handle handle = failing.create(kPage);
  std::byte* range = failing.reserve(kPage);
  EXPECT_THROW(failing.map(range, kPage, handle), Error);
  EXPECT_THROW(failing.map(range, kPage, handle), Error);
  failing.map(range, kPage, handle);
  EXPECT_EQ(failing.calls(), 5);
}

}  // namespace
}  // namespace vamp
