// VirtualMemory's contract as tests, for any backend:
//
//   INSTANTIATE_TYPED_TEST_SUITE_P(Host, VirtualMemoryConformance, HostBackend);
//
// A Backend is default-constructible and has
//   static std::optional<std::string> unavailable();            why its tests can't run on this
//   machine VirtualMemory& memory(); void write(std::byte* to, const std::vector<std::byte>&);
//   through the device std::vector<std::byte> read(const std::byte* from, size_t bytes); size_t
//   too_much();                                          more bytes than create() can give void
//   check_agrees(const ShadowVirtualMemory&);              the driver's own tables say the same
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp::test {

template <typename Backend>
class VirtualMemoryConformance : public testing::Test {
 protected:
  size_t page() { return shadow_->granularity(); }
  std::vector<std::byte> bytes(size_t count, uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> result(count);
    for (std::byte& byte : result) byte = static_cast<std::byte>(random.next());
    return result;
  }
  void map(std::byte* at, size_t size, Handle handle) {
    shadow_->map(at, size, handle);
    shadow_->set_access(at, size);
  }

  void SetUp() override {
    if (const auto why = Backend::unavailable()) GTEST_SKIP() << *why;
    backend_.emplace();
    shadow_.emplace(backend_->memory());
  }

  std::optional<Backend> backend_;
  std::optional<ShadowVirtualMemory> shadow_;  // every call of every test is checked
};

TYPED_TEST_SUITE_P(VirtualMemoryConformance);

TYPED_TEST_P(VirtualMemoryConformance, BytesOutliveUnmapAndMap) {
  const size_t size = 2 * this->page();
  std::byte* range = this->shadow_->reserve(4 * size);
  const Handle handle = this->shadow_->create(size);
  this->map(range, size, handle);
  const auto content = this->bytes(size, 1);
  this->backend_->write(range, content);
  this->shadow_->unmap(range, size);
  this->map(range + 2 * size, size, handle);
  EXPECT_EQ(this->backend_->read(range + 2 * size, size), content);
  this->backend_->check_agrees(*this->shadow_);
  this->shadow_->unmap(range + 2 * size, size);
  this->backend_->check_agrees(*this->shadow_);
  this->shadow_->destroy(handle);
  this->shadow_->release(range, 4 * size);
}

TYPED_TEST_P(VirtualMemoryConformance, OneHandleAtManyAddresses) {
  const size_t size = this->page();
  constexpr size_t kAddresses = 24;
  std::byte* range = this->shadow_->reserve(kAddresses * size);
  const Handle handle = this->shadow_->create(size);
  for (size_t i = 0; i < kAddresses; ++i) this->shadow_->map(range + i * size, size, handle);
  this->shadow_->set_access(range, kAddresses * size);
  for (size_t i = 0; i < kAddresses; ++i) {
    const auto content = this->bytes(size, i);
    this->backend_->write(range + i * size, content);
    EXPECT_EQ(this->backend_->read(range + (i * 7 + 5) % kAddresses * size, size), content);
  }
  this->shadow_->unmap(range, size);  // the others still see the memory
  EXPECT_EQ(this->backend_->read(range + size, size), this->bytes(size, kAddresses - 1));
  this->backend_->check_agrees(*this->shadow_);
  this->shadow_->unmap(range + size, (kAddresses - 1) * size);
  this->shadow_->destroy(handle);
  this->shadow_->release(range, kAddresses * size);
}

TYPED_TEST_P(VirtualMemoryConformance, AnAddressShowsWhateverIsMappedThere) {
  const size_t size = this->page();
  std::byte* range = this->shadow_->reserve(size);
  const Handle a = this->shadow_->create(size), b = this->shadow_->create(size);
  for (int round = 0; round < 4; ++round) {
    const Handle handle = round % 2 == 0 ? a : b;
    this->map(range, size, handle);
    if (round < 2) this->backend_->write(range, this->bytes(size, handle.value));
    EXPECT_EQ(this->backend_->read(range, size), this->bytes(size, handle.value));
    this->shadow_->unmap(range, size);
  }
  this->shadow_->destroy(a);
  this->shadow_->destroy(b);
  this->shadow_->release(range, size);
}

TYPED_TEST_P(VirtualMemoryConformance, RunsOfMappings) {
  const size_t page = this->page();
  std::byte* range = this->shadow_->reserve(6 * page);
  const Handle small = this->shadow_->create(page), large = this->shadow_->create(3 * page);
  this->shadow_->map(range + page, page, small);
  this->shadow_->map(range + 2 * page, 3 * page, large);
  this->shadow_->set_access(range + page, 4 * page);
  auto expected = this->bytes(4 * page, 3);
  this->backend_->write(range + page, expected);
  this->shadow_->zero(range + page + 8, 2 * page);  // across both, off the pages
  std::memset(expected.data() + 8, 0, 2 * page);
  EXPECT_EQ(this->backend_->read(range + page, 4 * page), expected);
  this->shadow_->unmap(range + page, 4 * page);
  EXPECT_TRUE(this->shadow_->table().empty());
  this->backend_->check_agrees(*this->shadow_);
  this->shadow_->destroy(small);
  this->shadow_->destroy(large);
  this->shadow_->release(range, 6 * page);
}

TYPED_TEST_P(VirtualMemoryConformance, TooMuchMemoryIsAnErrorAndNothingElse) {
  EXPECT_THROW(this->shadow_->create(this->backend_->too_much()), Error);
  const Handle handle = this->shadow_->create(this->page());
  this->shadow_->destroy(handle);
  this->backend_->check_agrees(*this->shadow_);
}

TYPED_TEST_P(VirtualMemoryConformance, RandomWalkKeepsContents) {
  const size_t page = this->page();
  constexpr size_t kPlaces = 48, kHandles = 20;
  Random random(7);
  std::byte* range = this->shadow_->reserve(kPlaces * page);
  std::vector<Handle> handles;
  std::vector<uint64_t> tags(kHandles);
  std::vector<int> at(kPlaces, -1);
  for (size_t i = 0; i < kHandles; ++i) handles.push_back(this->shadow_->create(page));
  const auto tag_bytes = [](uint64_t tag) {
    std::vector<std::byte> bytes(8);
    std::memcpy(bytes.data(), &tag, 8);
    return bytes;
  };
  for (int step = 0; step < 600; ++step) {
    const size_t place = random.below(kPlaces);
    if (at[place] >= 0) {
      EXPECT_EQ(this->backend_->read(range + place * page + 16, 8), tag_bytes(tags[at[place]]));
      this->shadow_->unmap(range + place * page, page);
      at[place] = -1;
    } else {
      const size_t handle = random.below(kHandles);
      this->map(range + place * page, page, handles[handle]);
      at[place] = static_cast<int>(handle);
      if (tags[handle] != 0) {
        EXPECT_EQ(this->backend_->read(range + place * page + 16, 8), tag_bytes(tags[handle]));
      }
      tags[handle] = random.next() | 1;
      this->backend_->write(range + place * page + 16, tag_bytes(tags[handle]));
    }
    if (step % 100 == 0) this->backend_->check_agrees(*this->shadow_);
  }
  for (size_t place = 0; place < kPlaces; ++place)
    if (at[place] >= 0) this->shadow_->unmap(range + place * page, page);
  for (const Handle handle : handles) this->shadow_->destroy(handle);
  this->shadow_->release(range, kPlaces * page);
}

REGISTER_TYPED_TEST_SUITE_P(VirtualMemoryConformance, BytesOutliveUnmapAndMap,
                            OneHandleAtManyAddresses, AnAddressShowsWhateverIsMappedThere,
                            RunsOfMappings, TooMuchMemoryIsAnErrorAndNothingElse,
                            RandomWalkKeepsContents);

}  // namespace vamp::test
