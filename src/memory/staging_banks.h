// The frames through which given-up experts pass.
#pragma once

#include <array>
#include <vector>

#include "memory/extent.h"
#include "model/memory_layout.h"

namespace vamp {

// The two staging banks. Bank = parity of the MoE layer, place = depth from the layer's tail. A
// place's frame is mapped at the address of *every* given-up group of that bank and place, so
// staging a layer means copying to the layer's own expert addresses, which overwrites what another
// layer of the same parity had there. A place has a frame as long as some group uses it: the frame
// of the first group given up there, which stays where it is mapped.
//
// It owns the banks' frames. One thread.
class StagingBanks {
 public:
  explicit StagingBanks(const MemoryLayout& layout);

  static int bank(GroupId id) { return id.moe_layer % 2; }
  int place(GroupId id) const { return groups_per_layer_ - 1 - id.group; }

  int users(GroupId id) const { return at(id).users; }
  const Extent& frame(GroupId id) const { return at(id).frame; }
  int frames() const;

  void put(GroupId id, Extent frame);  // a place's first user brings the frame
  void join(GroupId id);               // a further user
  void leave(GroupId id);              // of several users
  Extent take(GroupId id);             // the last user takes it away

 private:
  struct Place {
    Extent frame;
    int users = 0;
  };
  Place& at(GroupId id);
  const Place& at(GroupId id) const;

  int groups_per_layer_;
  std::array<std::vector<Place>, 2> places_;
};

}  // namespace vamp
