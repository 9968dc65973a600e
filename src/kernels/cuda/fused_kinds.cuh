// What the fused decode step knows of a model when it is compiled: it is a kernel for each kind of
// models, since the code that a layer goes through must fit the instruction cache.
#pragma once

namespace vamp::cuda::fused {

// Like Qwen3-30B-A3B.
struct Qwen3Kind {
  static constexpr int kHeadDim = 128, kRotary = 128;
  static constexpr int kPageTokens = 16;  // of a context
  static constexpr int kMaxRouted = 128;  // experts chosen among, a multiple of 32
  static constexpr bool kMixed = false;   // layers of attention alone, without gates
};

// Like Qwen3-Next-80B-A3B: layers of Gated DeltaNet among those of attention, whose output is
// gated; hundreds of experts, one of them shared.
struct Qwen3NextKind {
  static constexpr int kHeadDim = 256, kRotary = 64;
  static constexpr int kPageTokens = 8;
  static constexpr int kMaxRouted = 512;
  static constexpr bool kMixed = true;
};

}  // namespace vamp::cuda::fused
