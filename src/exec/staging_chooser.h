// Which staging mode is the cheaper one, by measured time.
#pragma once

#include <array>
#include <cstdint>

#include "core/step_plan.h"

namespace vamp {

// Whole regions hide behind the layer before but copy everything; activated experts are fewer but
// are known only after the router. Which wins depends on the processor, the memory and the batch,
// so the duration of the steps is what decides: a moving mean for each mode and each size of batch,
// and now and then a step in the dearer mode, the more rarely the dearer it is, so that trying
// costs about 3%.
//
// Pure: numbers in, a mode out. One thread.
class StagingChooser {
 public:
  // For a step of `tokens` tokens with `groups_out` groups given up.
  StagingMode choose(int tokens, int groups_out);
  // What the step in that mode took.
  void observe(StagingMode mode, int tokens, int groups_out, Micros took);

 private:
  struct Estimate {
    double mean = 0;
    int samples = 0;
    uint64_t last_tried = 0;  // in steps of the bucket
  };
  struct Bucket {
    std::array<Estimate, 2> modes;  // whole region, activated
    uint64_t steps = 0;
    int groups_out = 0;  // that the estimates are of
  };
  Bucket& bucket(int tokens, int groups_out);

  std::array<Bucket, 40> buckets_;  // by batch size, four to a doubling
};

}  // namespace vamp
