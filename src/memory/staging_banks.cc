#include "memory/staging_banks.h"

#include "base/error.h"

namespace vamp {

StagingBanks::StagingBanks(const MemoryLayout& layout)
    : groups_per_layer_(layout.groups_per_layer) {
  for (auto& bank : places_) bank.resize(static_cast<size_t>(layout.max_groups_out_per_layer));
}

StagingBanks::Place& StagingBanks::at(GroupId id) {
  return places_[static_cast<size_t>(bank(id))].at(static_cast<size_t>(place(id)));
}

const StagingBanks::Place& StagingBanks::at(GroupId id) const {
  return places_[static_cast<size_t>(bank(id))].at(static_cast<size_t>(place(id)));
}

int StagingBanks::frames() const {
  int frames = 0;
  for (const auto& bank : places_)
    for (const Place& place : bank) frames += place.users > 0;
  return frames;
}

void StagingBanks::put(GroupId id, Extent frame) {
  Place& place = at(id);
  VAMP_CHECK(place.users == 0 && !place.frame, "bank place {} has a frame already",
             this->place(id));
  frame.hand_to(Holder::kStagingBank);
  place = {std::move(frame), 1};
}

void StagingBanks::join(GroupId id) {
  VAMP_CHECK(users(id) > 0, "bank place {} has no frame", place(id));
  ++at(id).users;
}

void StagingBanks::leave(GroupId id) {
  VAMP_CHECK(users(id) > 1, "the last user of bank place {} takes its frame", place(id));
  --at(id).users;
}

Extent StagingBanks::take(GroupId id) {
  VAMP_CHECK(users(id) == 1, "bank place {} has {} users", place(id), users(id));
  at(id).users = 0;
  return std::move(at(id).frame);
}

}  // namespace vamp
