#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "core/make_policy.h"
#include "engine/scripted_executor.h"

namespace vamp {
namespace {

using testing::HasSubstr;

struct Recorder : EngineListener {
  void on_token(const RequestEvent& event) override {
    tokens[event.id].push_back(event.token);
    if (!event.top_logprobs.empty()) top_logprobs[event.id].push_back(event.top_logprobs);
  }
  void on_finished(const RequestEvent& event, const RequestStats& stats) override {
    finished[event.id] = event;
    figures[event.id] = stats;
    if (on_end) on_end(event.id);
  }
  void on_step(const StepStats& stats) override { steps.push_back(stats); }

  std::map<RequestId, std::vector<TokenId>> tokens;
  std::map<RequestId, std::vector<std::vector<std::pair<TokenId, float>>>> top_logprobs;
  std::map<RequestId, RequestEvent> finished;
  std::map<RequestId, RequestStats> figures;
  std::vector<StepStats> steps;
  std::function<void(RequestId)> on_end;
};

RequestInput make_request(RequestId id, int prompt, int output, Micros arrival = 0) {
  RequestInput request;
  request.id = id;
  for (int t = 0; t < prompt; ++t)
    request.prompt.push_back(static_cast<TokenId>(3 + (id * 31 + static_cast<uint64_t>(t)) % 400));
  request.sampling.max_tokens = output;
  request.sampling.ignore_eos = true;
  request.arrival = arrival;
  return request;
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    const ModelConfig model = load_model_config(VAMP_SOURCE_DIR "/tests/golden/qwen3_moe");
    MemoryLayoutOptions options;
    options.page_bytes = 4 * kKiB;
    options.device_bytes = 8 * kMiB;
    layout_ = make_memory_layout(model, options);
    config_.scheduler.max_num_batched_tokens = 64;
    config_.scheduler.max_num_seqs = 8;
    config_.inbox_capacity = 64;
  }
  std::unique_ptr<Engine> make(Executor& executor, Clock& clock) {
    return std::make_unique<Engine>(config_, layout_, make_policy("static", {}, layout_), executor,
                                    clock, recorder_);
  }

  EngineConfig config_;
  MemoryLayout layout_;
  Recorder recorder_;
  VirtualClock clock_;
};

TEST_F(EngineTest, TokensComeInOrderAndPlansRunOneAhead) {
  ScriptedExecutor executor(clock_, 1000);
  auto engine = make(executor, clock_);
  ASSERT_TRUE(engine->submit(make_request(7, 100, 10)));
  ASSERT_TRUE(engine->submit(make_request(8, 30, 5)));
  while (engine->step()) {
  }
  engine->check_invariants();
  ASSERT_EQ(recorder_.tokens[7].size(), 10u);
  ASSERT_EQ(recorder_.tokens[8].size(), 5u);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(recorder_.tokens[7][static_cast<size_t>(i)],
              ScriptedExecutor::expected_token(7, 100 + i));
  EXPECT_EQ(recorder_.finished[7].reason, FinishReason::kLength);
  EXPECT_EQ(executor.most_in_flight, 2);
  ASSERT_FALSE(recorder_.steps.empty());
  for (size_t s = 1; s < recorder_.steps.size(); ++s) {
    EXPECT_GT(recorder_.steps[s].step, recorder_.steps[s - 1].step);
    // Handed out before the step before it had ended, unless there was nothing to plan then.
    EXPECT_LE(recorder_.steps[s].planned, recorder_.steps[s].start);
  }
  int prefill = 0;
  for (const StepStats& step : recorder_.steps) prefill += step.prefill_tokens;
  EXPECT_GE(prefill, 128);
}

TEST_F(EngineTest, ARequestThatCanNeverRunIsRefusedAndTheOthersGoOn) {
  ScriptedExecutor executor(clock_, 1000);
  auto engine = make(executor, clock_);
  const int pool = layout_.base_blocks() * layout_.block_tokens;
  ASSERT_TRUE(engine->submit(make_request(1, pool * 2, 5)));
  ASSERT_TRUE(engine->submit(make_request(2, 30, 5)));
  while (engine->step()) {
  }
  EXPECT_EQ(recorder_.finished[1].reason, FinishReason::kError);
  EXPECT_FALSE(recorder_.finished[1].error.empty());
  EXPECT_EQ(recorder_.tokens[2].size(), 5u);
}

TEST_F(EngineTest, ATokenIdOutsideTheVocabularyIsRefusedAndTheOthersGoOn) {
  config_.scheduler.limits.vocab_size = 512;
  ScriptedExecutor executor(clock_, 1000);
  auto engine = make(executor, clock_);
  RequestInput bad = make_request(1, 30, 5);
  bad.prompt[7] = 512;
  ASSERT_TRUE(engine->submit(std::move(bad)));
  ASSERT_TRUE(engine->submit(make_request(2, 30, 5)));
  while (engine->step()) {
  }
  EXPECT_EQ(recorder_.finished[1].reason, FinishReason::kError);
  EXPECT_THAT(recorder_.finished[1].error, HasSubstr("token id 512 at position 7"));
  EXPECT_EQ(recorder_.tokens[1].size(), 0u);
  EXPECT_EQ(recorder_.tokens[2].size(), 5u);
}

TEST_F(EngineTest, TopLogprobsReachTheListener) {
  ScriptedExecutor executor(clock_, 1000);
  auto engine = make(executor, clock_);
  RequestInput request = make_request(1, 30, 5);
  request.sampling.logprobs = 3;
  ASSERT_TRUE(engine->submit(std::move(request)));
  ASSERT_TRUE(engine->submit(make_request(2, 30, 5)));
  while (engine->step()) {
  }
  ASSERT_EQ(recorder_.top_logprobs[1].size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    ASSERT_EQ(recorder_.top_logprobs[1][i].size(), 3u);
    EXPECT_EQ(recorder_.top_logprobs[1][i][0].first, recorder_.tokens[1][i]);
    EXPECT_EQ(recorder_.top_logprobs[1][i][2].second, -3.0f);
  }
  EXPECT_TRUE(recorder_.top_logprobs[2].empty());
}

TEST_F(EngineTest, CancelEndsARequestAtAnyMoment) {
  for (const int steps_before : {0, 1, 2, 5}) {
    ScriptedExecutor executor(clock_, 1000);
    auto engine = make(executor, clock_);
    ASSERT_TRUE(engine->submit(make_request(1, 100, 1000)));
    ASSERT_TRUE(engine->submit(make_request(2, 20, 20)));
    for (int s = 0; s < steps_before; ++s) engine->step();
    ASSERT_TRUE(engine->cancel(1));
    while (engine->step()) {
    }
    EXPECT_EQ(recorder_.finished[1].reason, FinishReason::kCancelled) << steps_before;
    EXPECT_EQ(recorder_.finished[2].reason, FinishReason::kLength);
    engine->check_invariants();
    recorder_ = {};
  }
}

TEST_F(EngineTest, AFullInboxRefuses) {
  config_.inbox_capacity = 2;
  ScriptedExecutor executor(clock_, 1000);
  auto engine = make(executor, clock_);
  EXPECT_TRUE(engine->submit(make_request(1, 5, 1)));
  EXPECT_TRUE(engine->submit(make_request(2, 5, 1)));
  EXPECT_FALSE(engine->submit(make_request(3, 5, 1)));
  engine->step();
  EXPECT_TRUE(engine->submit(make_request(3, 5, 1)));
}

TEST_F(EngineTest, SameSubmissionsSameRun) {
  std::vector<Micros> ends[2];
  for (auto& run : ends) {
    VirtualClock clock;
    recorder_ = {};
    ScriptedExecutor executor(clock, 1234.5);
    auto engine = make(executor, clock);
    for (RequestId id = 1; id <= 20; ++id)
      ASSERT_TRUE(engine->submit(make_request(id, 20 + static_cast<int>(id) * 7, 9)));
    while (engine->step()) {
    }
    for (const auto& [id, stats] : recorder_.figures) run.push_back(stats.finished);
  }
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(ends[0].size(), 20u);
}

// Threads submit and cancel while the engine runs; every request ends exactly once.
TEST_F(EngineTest, ManyThreadsSubmitAndCancel) {
  RealClock clock;
  ScriptedExecutor executor(clock, 50);
  auto engine = make(executor, clock);
  std::atomic<int> ended = 0;
  recorder_.on_end = [&ended](RequestId) { ++ended; };
  std::thread loop([&engine] { engine->run(); });
  std::vector<std::thread> clients;
  constexpr int kClients = 3, kRequests = 40;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&engine, c] {
      for (int r = 0; r < kRequests; ++r) {
        const RequestId id = static_cast<RequestId>(c * 1000 + r + 1);
        while (!engine->submit(make_request(id, 10 + r, 4))) std::this_thread::yield();
        if (r % 5 == 0) {
          while (!engine->cancel(id)) std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  while (ended < kClients * kRequests) std::this_thread::yield();
  engine->stop();
  loop.join();
  EXPECT_EQ(recorder_.finished.size(), static_cast<size_t>(kClients * kRequests));
  engine->check_invariants();
}

}  // namespace
}  // namespace vamp
