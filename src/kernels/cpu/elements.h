// Element types as the kernels see them. Plain data only: files compiled for an instruction set
// include nothing that could emit shared inline code for it (the linker might pick it for every
// processor).
#pragma once

#include <cstdint>

namespace vamp::cpu {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// As DType of the model, by value.
enum class Element : uint8_t { kBf16, kF16, kF32 };

}  // namespace vamp::cpu
