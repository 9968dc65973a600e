#include "exec/staging_chooser.h"

#include <gtest/gtest.h>

namespace vamp {
namespace {

// Steps in which whole regions were used, of `steps`, when the modes take so long.
int whole_steps(StagingChooser& chooser, int tokens, int groups_out, int steps, Micros whole,
                Micros activated) {
  int count = 0;
  for (int i = 0; i < steps; ++i) {
    const StagingMode mode = chooser.choose(tokens, groups_out);
    const bool is_whole = mode == StagingMode::kWholeRegion;
    EXPECT_NE(mode, StagingMode::kAuto);
    count += is_whole;
    chooser.observe(mode, tokens, groups_out, is_whole ? whole : activated);
  }
  return count;
}

TEST(StagingChooser, TakesTheCheaperAndRarelyTriesTheOther) {
  StagingChooser chooser;
  EXPECT_LE(whole_steps(chooser, 4, 10, 1000, 2000, 1000), 2 + 1000 / 64);
  EXPECT_GE(whole_steps(chooser, 512, 10, 1000, 1000, 4000), 1000 - 2 - 1000 / 128);
}

TEST(StagingChooser, EachBatchSizeHasItsOwnAnswer) {
  StagingChooser chooser;
  whole_steps(chooser, 1, 10, 100, 2000, 1000);
  whole_steps(chooser, 256, 10, 100, 1000, 2000);
  EXPECT_EQ(chooser.choose(1, 10), StagingMode::kActivated);
  EXPECT_EQ(chooser.choose(256, 10), StagingMode::kWholeRegion);
}

TEST(StagingChooser, FollowsAChange) {
  StagingChooser chooser;
  whole_steps(chooser, 8, 10, 500, 2000, 1000);
  EXPECT_GE(whole_steps(chooser, 8, 10, 500, 1000, 3000), 400);
  // A boundary far away starts anew: both are tried.
  EXPECT_EQ(chooser.choose(8, 100), StagingMode::kActivated);
}

}  // namespace
}  // namespace vamp
