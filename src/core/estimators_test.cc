#include "core/estimators.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "core/session_forecast.h"

namespace vamp {
namespace {

TEST(Ewma, FirstSampleReplacesTheInitialValue) {
  Ewma mean(0.25, 100);
  EXPECT_EQ(mean.value(), 100);
  mean.add(8);
  EXPECT_EQ(mean.value(), 8);
  mean.add(16);
  EXPECT_EQ(mean.value(), 10);
}

TEST(RateMeter, SteadyStreamAndDecay) {
  RateMeter meter(10e6);
  for (int i = 0; i <= 600; ++i) meter.add(5, i * 100e3);
  EXPECT_NEAR(meter.rate(60e6), 5 / 100e3, 0.02 * 5 / 100e3);
  EXPECT_NEAR(meter.rate(70e6), 5 / 100e3 / std::exp(1.0), 0.02 * 5 / 100e3);
}

TEST(TokenBucket, PowersOfTwo) {
  EXPECT_EQ(token_bucket(0), 0);
  EXPECT_EQ(token_bucket(1), 0);
  EXPECT_EQ(token_bucket(2), 1);
  EXPECT_EQ(token_bucket(255), 7);
  EXPECT_EQ(token_bucket(256), 8);
  EXPECT_EQ(token_bucket(1e6), 13);
}

TEST(PrefillEstimator, FindsTheCoefficientsFromAPriorFarOff) {
  const price::PrefillCost truth{4000, 22, 0.0009};
  PrefillEstimator estimator({0, 15, 0});
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    const double tokens = 64 + static_cast<double>(random.below(8000));
    const double before = static_cast<double>(random.below(40000));
    const double us = price::prefill(truth, before, tokens) * (0.95 + 0.1 * random.uniform());
    estimator.add(tokens, tokens * (before + tokens / 2), us);
  }
  for (const double tokens : {500.0, 8000.0}) {
    for (const double before : {0.0, 30000.0}) {
      const double expected = price::prefill(truth, before, tokens);
      EXPECT_NEAR(price::prefill(estimator.cost(), before, tokens), expected, 0.1 * expected);
    }
  }
}

TEST(PrefillEstimator, OneSampleSetsTheScale) {
  // A CPU: 3 ms a token where the prior says 15 us.
  PrefillEstimator estimator({0, 15, 0});
  estimator.add(256, 256 * 128, 256 * 3000.0);
  EXPECT_NEAR(price::prefill(estimator.cost(), 0, 512), 512 * 3000.0, 1);
}

// Hours of short chunks, all alike, in steps that are mostly decodes: nothing tells the
// coefficients apart, and what is left of a step's time is mostly noise, at times nothing.
TEST(PrefillEstimator, ManyStepsThatTellLittleDoNotCarryItAway) {
  const price::PrefillCost truth{500, 15, 0.0004};
  PrefillEstimator estimator({0, 15, 0.0002});
  Random random(3);
  for (int i = 0; i < 100'000; ++i) {
    const double tokens = 64 + static_cast<double>(random.below(400));
    const double before = 30000 + static_cast<double>(random.below(10000));
    const double noise = 8000 * (random.uniform() - 0.5);
    estimator.add(tokens, tokens * (before + tokens / 2),
                  price::prefill(truth, before, tokens) + noise);
    const double expected = price::prefill(truth, 35000, 300);
    if (i > 1000) {
      ASSERT_NEAR(price::prefill(estimator.cost(), 35000, 300), expected, 0.3 * expected) << i;
      ASSERT_LT(price::prefill(estimator.cost(), 0, 8000), 60 * 8000.0) << i;
    }
  }
}

TEST(DecodeEstimator, InterpolatesAndLearnsTheContextsPart) {
  DecodeEstimator estimator({.base = 1000, .per_request = 10, .per_context_token = 0});
  Random random(2);
  for (int i = 0; i < 2000; ++i) {
    const int batch = 1 << random.below(6);
    const double context = batch * (1000.0 + static_cast<double>(random.below(9000)));
    estimator.add(batch, context, 5000 + 200.0 * batch + 0.02 * context);
  }
  for (const int batch : {4, 12, 32}) {
    const double context = batch * 5000.0;
    const double expected = 5000 + 200.0 * batch + 0.02 * context;
    EXPECT_NEAR(estimator.step_us(batch, context), expected, 0.05 * expected) << batch;
  }
}

TEST(DecodeEstimator, PriorUntilMeasured) {
  DecodeEstimator estimator({.base = 1000, .per_request = 10, .per_context_token = 0.5});
  EXPECT_DOUBLE_EQ(estimator.step_us(8, 100), 1000 + 80 + 50);
}

TEST(LinkEstimator, IgnoresSmallCopies) {
  LinkEstimator link(50e3);
  link.add(4096, 1000);
  EXPECT_EQ(link.bytes_per_us(), 50e3);
  link.add(40 * kMiB, 1000);
  EXPECT_DOUBLE_EQ(link.bytes_per_us(), 40.0 * kMiB / 1000);
}

// Two MoE layers of 8 experts in groups of 2, everything but layer 0 may go, tail first.
MemoryLayout small_layout() {
  MemoryLayout layout;
  layout.moe_layers = 2;
  layout.experts = 8;
  layout.gate_up_shard_bytes = 2048;
  layout.down_shard_bytes = 1024;
  layout.shards_per_group = 2;
  layout.groups_per_layer = 4;
  layout.order.groups = {{1, 3}, {1, 2}, {1, 1}};
  return layout;
}

TEST(ExpertHeat, EvenUntilCounted) {
  const MemoryLayout layout = small_layout();
  const ExpertHeat heat(layout, 2);
  EXPECT_EQ(heat.activated_bytes(0, 4), 0);
  // One token: q = 2/8 of a group of two shards of 3,072 bytes.
  EXPECT_NEAR(heat.activated_bytes(1, 1), 0.25 * 6144, 1);
  EXPECT_NEAR(heat.activated_bytes(2, 4), 2 * 6144 * price::activation_probability(0.25, 4), 2);
  EXPECT_NEAR(heat.activated_bytes(3, 8192), 3 * 6144, 1);
}

TEST(ExpertHeat, FollowsCountsAndWhatIsActivated) {
  const MemoryLayout layout = small_layout();
  ExpertHeat heat(layout, 2);
  std::vector<uint32_t> counts(16, 0);
  for (int e = 0; e < 8; ++e) counts[e] = 50000;       // layer 0: even
  for (int e = 0; e < 4; ++e) counts[8 + e] = 100000;  // layer 1: the upper half is cold
  heat.add_counts(counts);
  EXPECT_LT(heat.activated_bytes(2, 16), 0.02 * 2 * 6144);  // groups 3 and 2: experts 4 ... 7
  EXPECT_GT(heat.activated_bytes(3, 16), 0.9 * 6144);       // group 1: experts 2, 3
  // Tokens that choose alike activate fewer bytes than independent ones would.
  const double before = heat.activated_bytes(3, 16);
  for (int i = 0; i < 200; ++i) heat.add_activation(3, 16, before / 2);
  EXPECT_NEAR(heat.activated_bytes(3, 16), before / 2, 0.01 * before);
}

TEST(HiddenCopyEstimator, LearnsFromBothSides) {
  HiddenCopyEstimator estimator;
  EXPECT_EQ(estimator.hidden(16), 0);
  estimator.add(16, 50e6, 50e3, 0);  // 1 ms of copying, nothing waited
  EXPECT_DOUBLE_EQ(estimator.hidden(16), 1000);
  for (int i = 0; i < 200; ++i) estimator.add(16, 200e6, 50e3, 1500);  // 4 ms, of which 1.5 waited
  EXPECT_NEAR(estimator.hidden(16), 2500, 10);
  EXPECT_EQ(estimator.hidden(1024), 0);
}

TEST(ReuseCurve, StackDistances) {
  const price::PrefillCost per_token{0, 1, 0};
  ReuseCurve curve(4);
  for (int round = 0; round < 5; ++round) {
    for (SessionId session = 1; session <= 4; ++session) {
      curve.turn_scheduled(session, 1000);
      curve.turn_ended(session, 1000);
    }
  }
  // Four sessions of 1,000 tokens in turn: between two turns of one the other three come.
  EXPECT_DOUBLE_EQ(curve.prefill_per_turn(4000, per_token), 0);
  EXPECT_DOUBLE_EQ(curve.prefill_per_turn(3500, per_token), 500);
  EXPECT_DOUBLE_EQ(curve.prefill_per_turn(3000, per_token), 1000);
  EXPECT_DOUBLE_EQ(curve.prefill_per_turn(0, per_token), 1000);
  EXPECT_EQ(curve.stack_tokens(), 4000);

  // A session that runs all the while takes room without being used "since".
  ReuseCurve busy(1);
  busy.turn_scheduled(1, 5000);
  busy.turn_scheduled(2, 1000);
  busy.turn_ended(2, 1000);
  busy.turn_scheduled(2, 1000);
  EXPECT_DOUBLE_EQ(busy.prefill_per_turn(6000, per_token), 0);
  EXPECT_DOUBLE_EQ(busy.prefill_per_turn(5000, per_token), 1000);
}

// Two sessions of 1,000 tokens, of which 600 are one system prompt: the pool holds it once.
TEST(ReuseCurve, WhatSessionsShareIsInThePoolOnce) {
  const price::PrefillCost per_token{0, 1, 0};
  ReuseCurve curve(2);
  curve.turn_scheduled(1, 1000, 0);
  curve.turn_ended(1, 1000);
  curve.turn_scheduled(2, 1000, 600);
  curve.turn_ended(2, 1000);
  curve.turn_scheduled(3, 1000, 600);
  curve.turn_ended(3, 1000);
  for (const SessionId session : {2, 3}) {
    curve.turn_scheduled(session, 1000, 0);
    curve.turn_ended(session, 1000);
  }
  // 600 shared, 400 of the other one, 400 of its own.
  EXPECT_DOUBLE_EQ(curve.prefill_per_turn(1400, per_token), 0);
  EXPECT_DOUBLE_EQ(curve.prefill_per_turn(1200, per_token), 200);
  EXPECT_DOUBLE_EQ(curve.prefill_per_turn(1000, per_token), 400);
}

TEST(GapHistogram, ConditionalReturn) {
  GapHistogram gaps;
  EXPECT_EQ(gaps.return_probability(1e6, 1e6), 0.5);
  EXPECT_EQ(gaps.return_probability(61e6, 1e6), 0.1);
  // Nine in ten come back after about 2 s, one never.
  for (int i = 0; i < 1000; ++i) {
    gaps.turn_ended();
    if (i % 10 != 0) gaps.returned(2e6);
  }
  EXPECT_NEAR(gaps.return_probability(0, 10e6), 0.9, 0.02);
  EXPECT_NEAR(gaps.return_probability(0, 0.5e6), 0, 0.01);
  EXPECT_NEAR(gaps.return_probability(30e6, 60e6), 0, 0.01);
}

TEST(SessionForecast, WaitingTurnsAreCertainAndTheQueueOrdersThem) {
  SessionForecast forecast;
  forecast.turn_started(1, 0);
  forecast.turn_started(2, 10);
  forecast.turn_started(3, 20);
  const Micros horizon = 1e6, service = 2e6;
  EXPECT_EQ(forecast.reuse_probability(1, 100, horizon, service), 1);
  EXPECT_DOUBLE_EQ(forecast.reuse_probability(2, 100, horizon, service), 1.0 / 3);
  EXPECT_DOUBLE_EQ(forecast.reuse_probability(3, 100, horizon, service), 1.0 / 5);
  // Having finished, a session stands behind all that wait.
  forecast.turn_ended(1, {}, 200);
  EXPECT_EQ(forecast.reuse_probability(2, 300, horizon, service), 1);
  EXPECT_LT(forecast.reuse_probability(1, 300, horizon, service),
            forecast.reuse_probability(3, 300, horizon, service));
}

TEST(SessionForecast, AReleasedSessionIsNotExpectedUntilItComesBack) {
  SessionForecast forecast;
  forecast.turn_started(1, 0);
  forecast.turn_ended(1, {.expected_gap = {}, .release = true}, 100);
  EXPECT_EQ(forecast.reuse_probability(1, 200, 1e6, 0), 0);
  forecast.turn_started(1, 300);
  EXPECT_EQ(forecast.reuse_probability(1, 400, 1e6, 0), 1);
}

TEST(SessionForecast, AnExpectedGapTellsWhenThePrefixIsUsed) {
  SessionForecast forecast;
  const Micros horizon = 10e6;
  for (const SessionId session : {1, 2, 3}) forecast.turn_started(session, 0);
  forecast.turn_ended(1, {.expected_gap = 1e6}, 0);
  forecast.turn_ended(2, {.expected_gap = 40e6}, 0);
  forecast.turn_ended(3, {}, 0);
  const auto p = [&](SessionId id, Micros now) {
    return forecast.reuse_probability(id, now, horizon, 0);
  };
  // 0.9 of the hint, before any has been tested, and 0.1 of what is known without.
  EXPECT_NEAR(p(1, 0), 0.9 / 1.1 + 0.05, 1e-9);
  EXPECT_NEAR(p(2, 0), 0.9 / 5 + 0.05, 1e-9);
  EXPECT_EQ(p(3, 0), 0.5);
  EXPECT_GT(p(2, 39.5e6), p(1, 0));
  // Overdue: as if nothing had been said.
  EXPECT_EQ(p(1, 3.1e6), p(3, 3.1e6));
}

TEST(SessionForecast, HintsThatDoNotComeTrueLoseTheirWeight) {
  SessionForecast forecast;
  Micros now = 0;
  for (int i = 0; i < 200; ++i) {
    forecast.turn_started(1, now);
    forecast.turn_ended(1, {.expected_gap = 1e6}, now);
    now += 30e6;  // ever again much later
  }
  forecast.turn_started(1, now);
  forecast.turn_ended(1, {.expected_gap = 1e6}, now);
  forecast.turn_started(2, now);
  forecast.turn_ended(2, {}, now);
  EXPECT_NEAR(forecast.reuse_probability(1, now, 10e6, 0),
              forecast.reuse_probability(2, now, 10e6, 0), 0.01);
}

}  // namespace
}  // namespace vamp
