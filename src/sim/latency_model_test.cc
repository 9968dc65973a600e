#include "sim/latency_model.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/model_shapes.h"

namespace vamp {
namespace {

MemoryLayout layout_for(const ModelConfig& model, size_t device_bytes, int tp, double percent) {
  MemoryLayoutOptions options;
  options.device_bytes = device_bytes;
  options.tensor_parallel = tp;
  options.max_offload_percent = percent;
  return make_memory_layout(model, options);
}

StepShape decode(int batch, double context) {
  return {.sequences = batch,
          .decode_requests = batch,
          .decode_context = batch * context,
          .sampled = batch};
}
StepShape prefill(int tokens, double before) {
  return {.sequences = 1,
          .prefill_tokens = tokens,
          .prefill_pairs = tokens * (before + tokens / 2.0),
          .prefill_context = before + tokens,
          .sampled = 1};
}

class H200 : public testing::Test {
 protected:
  MemoryLayout layout_ = layout_for(qwen3_30b_a3b(), 120 * kGiB, 1, 20);
  LatencyModel model_{qwen3_30b_a3b(), layout_, machine_profile("h200"), {}};
  Micros time(const StepShape& shape) { return model_.step(shape, 0, StagingMode::kAuto).total; }
};

// vLLM 0.26.0 on one H200, Qwen3-30B-A3B: measured TPOT, ms.
TEST_F(H200, MeasuredDecodeTable) {
  EXPECT_NEAR(time(decode(1, 4096)) / 1e3, 4.25, 0.1 * 4.25);
  EXPECT_NEAR(time(decode(16, 4096)) / 1e3, 13.9, 0.05 * 13.9);
  EXPECT_NEAR(time(decode(64, 4096)) / 1e3, 23.3, 0.05 * 23.3);
  EXPECT_NEAR(time(decode(128, 4096)) / 1e3, 29.8, 0.05 * 29.8);
  EXPECT_NEAR(time(decode(256, 2048)) / 1e3, 30.7, 0.1 * 30.7);
}

// Same source: 49,000 tokens/s at 8k, 27,800 at 32k (four chunks of 8k).
TEST_F(H200, MeasuredPrefill) {
  EXPECT_NEAR(8192 / time(prefill(8192, 0)) * 1e6, 49e3, 0.05 * 49e3);
  Micros total = 0;
  for (int chunk = 0; chunk < 4; ++chunk) total += time(prefill(8192, 8192.0 * chunk));
  EXPECT_NEAR(32768 / total * 1e6, 27.8e3, 0.05 * 27.8e3);
}

TEST_F(H200, NothingGivenUpCostsNothing) {
  const StepTime step = model_.step(decode(16, 4096), 0, StagingMode::kWholeRegion);
  EXPECT_EQ(step.staging.staged_bytes, 0u);
  EXPECT_EQ(step.staging.stall, 0);
  EXPECT_EQ(step.staging.used, StagingMode::kAuto);
}

TEST_F(H200, ActivatedStagingCopiesTheChosenExpertsShare) {
  const int n = layout_.max_groups_out();
  const StepTime step = model_.step(decode(4, 4096), n, StagingMode::kActivated);
  const double whole = static_cast<double>(n) * static_cast<double>(layout_.group_bytes());
  // Four tokens, 8 of 128 each: 1 - (15/16)^4 = 22.75%.
  EXPECT_NEAR(static_cast<double>(step.staging.staged_bytes), 0.2275 * whole, 0.01 * whole);
  EXPECT_LE(step.staging.stall, static_cast<double>(step.staging.staged_bytes) / 51e3);
  EXPECT_GT(step.staging.stall, 0.8 * static_cast<double>(step.staging.staged_bytes) / 51e3);
}

// bench/gpu/staging_bench on one H200: milliseconds that giving up 5% of Qwen3-30B-A3B's experts
// adds to a step of so many sequences, the gather beside the products, which were two launches
// then.
TEST_F(H200, MeasuredGather) {
  const int n = 48 * 3;  // 3 of 64 groups a layer
  const MemoryLayout layout = layout_for(qwen3_30b_a3b(), 120 * kGiB, 1, 20);
  MemoryLayout all = layout;
  all.set_order(round_robin_order(layout, layout.max_groups_out_per_layer, false));
  LatencyModel model(qwen3_30b_a3b(), all, machine_profile("h200"), {});
  const auto added = [&](int batch) {
    return model.step(decode(batch, 4096), n, StagingMode::kActivated).staging.stall / 1e3;
  };
  EXPECT_NEAR(added(4), 11.8, 0.15 * 11.8);
  EXPECT_NEAR(added(16), 29.6, 0.1 * 29.6);
  EXPECT_NEAR(added(64), 47.8, 0.1 * 47.8);
}

TEST_F(H200, WholeRegionHidesBehindALongPrefill) {
  const int n = layout_.max_groups_out() / 4;
  const double copy = static_cast<double>(n) * static_cast<double>(layout_.group_bytes()) / 55e3;
  // A decode step is far shorter than the copy: it takes nearly the copy's time.
  const StepTime bound = model_.step(decode(1, 1000), n, StagingMode::kWholeRegion);
  EXPECT_NEAR(bound.total, copy, 0.1 * copy);
  // A chunk that computes longer than the copy takes hides all of it.
  const StepTime hidden = model_.step(prefill(8192, 0), n, StagingMode::kWholeRegion);
  EXPECT_GT(hidden.total, copy);
  EXPECT_LT(hidden.staging.stall, 0.02 * copy);
  EXPECT_EQ(model_.step(decode(1, 1000), n, StagingMode::kAuto).staging.used,
            StagingMode::kActivated);
}

// The paper's platform at VAMP-15: 10.6 GiB a step at 55 GB/s are 206 ms of its 224 ms TPOT.
TEST(PaperPlatform, Vamp15IsBoundByTheLink) {
  const ModelConfig model = qwen3_next_80b_a3b();
  MemoryLayoutOptions options;
  options.device_bytes = 84 * kGiB;
  options.tensor_parallel = 2;
  options.max_offload_percent = 15;
  options.round_to_increment = true;
  const MemoryLayout layout = make_memory_layout(model, options);
  LatencyModel latency(model, layout, machine_profile("h100-pcie-94g"), {});
  const StepTime step =
      latency.step(decode(20, 30000), layout.max_groups_out(), StagingMode::kWholeRegion);
  EXPECT_NEAR(static_cast<double>(step.staging.staged_bytes), 10.46 * kGiB, 0.05 * kGiB);
  EXPECT_NEAR(step.total / 1e3, 206, 0.05 * 206);
  // Prefill there costs about 46 us a token.
  const StepTime chunk = latency.step(prefill(8192, 16000), 0, StagingMode::kAuto);
  EXPECT_NEAR(chunk.total / 8192, 46, 0.1 * 46);
}

// SmolLM2 MoE on one core: llama.cpp 55 tok/s at batch 1, HF transformers 308 prefill.
TEST(Cpu, MeasuredRates) {
  const ModelConfig model = smollm2_moe(8, 1536);
  const MemoryLayout layout = layout_for(model, 3 * kGiB, 1, 0);
  LatencyModel latency(model, layout, machine_profile("cpu"), {});
  EXPECT_NEAR(1e6 / latency.step(decode(1, 128), 0, StagingMode::kAuto).total, 55, 10);
  EXPECT_NEAR(8e6 / latency.step(decode(8, 128), 0, StagingMode::kAuto).total, 125, 30);
  EXPECT_NEAR(1024e6 / latency.step(prefill(1024, 0), 0, StagingMode::kAuto).total, 290, 30);
}

TEST(RoutingModel, EvenShares) {
  const RoutingModel routing({}, 512, 10);
  EXPECT_NEAR(routing.distinct(16) / 512, 0.27, 0.005);
  EXPECT_NEAR(routing.distinct(64) / 512, 0.72, 0.005);
  EXPECT_NEAR(routing.distinct(40, 76) / 76, routing.distinct(40) / 512, 1e-4);
  EXPECT_NEAR(routing.distinct(100000), 512, 1e-3);
  EXPECT_EQ(routing.distinct(0), 0);
}

TEST(RoutingModel, ColdTailAndZipf) {
  const RoutingModel cold({.cold_share = 0.15, .cold_popularity = 0.05}, 128, 8);
  EXPECT_LT(cold.distinct(4, 19) / 19, 0.02);
  double sum = 0;
  for (const double q : cold.share()) sum += q;
  EXPECT_NEAR(sum, 8, 1e-9);
  const RoutingModel zipf({.zipf = 1.2}, 128, 8);
  sum = 0;
  for (const double q : zipf.share()) {
    EXPECT_LE(q, 1);
    sum += q;
  }
  EXPECT_NEAR(sum, 8, 1e-9);
  EXPECT_LT(zipf.distinct(64), RoutingModel({}, 128, 8).distinct(64));
  const RoutingModel shuffled({.zipf = 1.2, .cold_last = false}, 128, 8);
  EXPECT_GT(shuffled.distinct(4, 19), 2 * zipf.distinct(4, 19));
}

TEST(MachineProfile, UnknownNameIsAnError) {
  EXPECT_THROW(machine_profile("tpu"), Error);
}

}  // namespace
}  // namespace vamp
