#include "memory/remap.h"

namespace vamp {

void Remap::unmap(std::byte* address, size_t bytes, Handle handle) {
  calls_.push_back({Call::Kind::kUnmap, address, bytes, handle});
}

void Remap::map(std::byte* address, size_t bytes, Handle handle) {
  Call access{Call::Kind::kAccess, address, bytes, {}};
  if (!calls_.empty() && calls_.back().kind == Call::Kind::kAccess &&
      calls_.back().address + calls_.back().bytes == address) {
    access = calls_.back();
    access.bytes += bytes;
    calls_.pop_back();
  }
  calls_.push_back({Call::Kind::kMap, address, bytes, handle});
  calls_.push_back(access);
}

void Remap::run(VirtualMemory& memory) {
  try {
    for (const Call& call : calls_) {
      switch (call.kind) {
        case Call::Kind::kUnmap:
          memory.unmap(call.address, call.bytes);
          break;
        case Call::Kind::kMap:
          memory.map(call.address, call.bytes, call.handle);
          break;
        case Call::Kind::kAccess:
          memory.set_access(call.address, call.bytes);
          break;
      }
      ++made_;
    }
  } catch (const Error& error) {
    try {
      take_back(memory);
    } catch (const RollbackError& second) {
      throw RollbackError("{}; before that: {}", second.what(), error.what());
    }
    throw;
  }
}

void Remap::take_back(VirtualMemory& memory) {
  try {
    while (made_ > 0) {
      const Call& call = calls_[made_ - 1];
      switch (call.kind) {
        case Call::Kind::kUnmap:
          memory.map(call.address, call.bytes, call.handle);
          memory.set_access(call.address, call.bytes);
          break;
        case Call::Kind::kMap:
          memory.unmap(call.address, call.bytes);
          break;
        case Call::Kind::kAccess:
          break;  // goes with the mapping
      }
      --made_;
    }
  } catch (const Error& error) {
    throw RollbackError("a change of mappings could not be taken back: {}", error.what());
  }
}

}  // namespace vamp
