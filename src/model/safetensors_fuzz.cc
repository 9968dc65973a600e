// Any bytes as a safetensors file or an index: refused with an Error, or tensors that lie inside it.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vamp;
  try {
    const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
    size_t covered = 0;
    for (const SafetensorsEntry& entry : parse_safetensors_header(bytes, size, "fuzz")) {
      VAMP_CHECK(entry.begin <= entry.end && entry.end <= size);
      covered += entry.end - entry.begin;
    }
    VAMP_CHECK(covered <= size);
  } catch (const Error&) {
  }
  try {
    parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const Error&) {
  }
  return 0;
}
