// Driver calls as data: made in order, taken back in reverse.
#pragma once

#include <cstddef>
#include <vector>

#include "base/error.h"
#include "memory/virtual_memory.h"

namespace vamp {

// A failed change could not be taken back: the memory is in no known state.
class RollbackError : public Error {
 public:
  using Error::Error;
};

// A list of map and unmap calls that is carried out as a whole or not at all. Built first, without
// touching anything; then run() once. Each map is followed by its access: neighbouring new mappings
// share one set_access.
class Remap {
 public:
  // `handle` is what is mapped there, so that it can be mapped again.
  void unmap(std::byte* address, size_t bytes, Handle handle);
  void map(std::byte* address, size_t bytes, Handle handle);

  // Makes all calls. On a failure takes back those made and throws the Error; if taking back fails
  // too, throws RollbackError.
  void run(VirtualMemory& memory);
  // The inverse of a whole run().
  void take_back(VirtualMemory& memory);

 private:
  struct Call {
    enum class Kind { kUnmap, kMap, kAccess } kind;
    std::byte* address;
    size_t bytes;
    Handle handle;
  };
  static void invert(VirtualMemory& memory, const Call& call);

  std::vector<Call> calls_;
  size_t made_ = 0;
};

}  // namespace vamp
