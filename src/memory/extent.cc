#include "memory/extent.h"

#include <numeric>

#include "base/error.h"

namespace vamp {

const char* holder_name(Holder holder) {
  switch (holder) {
    case Holder::kExpertStore:
      return "expert store";
    case Holder::kKvArena:
      return "KV arena";
    case Holder::kStagingBank:
      return "staging bank";
    case Holder::kFree:
      return "free";
  }
  return "?";
}

void ExtentLedger::check() const {
  const size_t sum = std::accumulate(held_.begin(), held_.end(), size_t{0});
  VAMP_CHECK(sum == created_, "holders have {} bytes, {} were created", sum, created_);
}

void ExtentLedger::create(size_t bytes) {
  created_ += bytes;
  held_[static_cast<size_t>(Holder::kFree)] += bytes;
  check();
}

void ExtentLedger::destroy(Holder from, size_t bytes) {
  created_ -= bytes;
  held_[static_cast<size_t>(from)] -= bytes;
}

void ExtentLedger::hand_over(Holder from, Holder to, size_t bytes) {
  size_t& giver = held_[static_cast<size_t>(from)];
  VAMP_CHECK(giver >= bytes, "the {} hands over {} bytes of {}", holder_name(from), bytes, giver);
  giver -= bytes;
  held_[static_cast<size_t>(to)] += bytes;
  check();
}

Extent::Extent(VirtualMemory& memory, ExtentLedger& ledger, size_t bytes)
    : handle_(memory.create(bytes)), bytes_(bytes) {
  memory_ = &memory;
  ledger_ = &ledger;
  ledger.create(bytes);
}

Extent& Extent::operator=(Extent&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(ledger_, other.ledger_);
  std::swap(handle_, other.handle_);
  std::swap(bytes_, other.bytes_);
  std::swap(holder_, other.holder_);
  return *this;
}

Extent::~Extent() {
  if (!memory_) return;
  ledger_->destroy(holder_, bytes_);
  try {
    memory_->destroy(handle_);
  } catch (const std::exception&) {
    // The device keeps the memory until the process ends; there is nobody to tell.
  }
}

void Extent::hand_to(Holder holder) {
  ledger_->hand_over(holder_, holder, bytes_);
  holder_ = holder;
}

}  // namespace vamp
