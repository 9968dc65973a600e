#include "replay/replay_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "core/make_policy.h"
#include "engine/scripted_executor.h"

namespace vamp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(PromptBuilder, BlockTokensDependOnSeedAndKeyAlone) {
  Trace trace = make_sweep({.sessions = 2,
                            .turns = 3,
                            .kv_bytes_per_session = 1000,
                            .kv_bytes_per_token = 1,
                            .output_tokens = 10});
  PromptOptions options;
  options.vocab_size = 50000;
  const PromptBuilder builder(trace, options, nullptr);
  const auto first = builder.build(0, 0, {}, {}), second = builder.build(0, 1, {}, {}),
             other = builder.build(1, 0, {}, {});
  ASSERT_EQ(first.size(), 400u);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));
  EXPECT_NE(first, other);
  for (const TokenId token : second) EXPECT_TRUE(token >= 1000 && token < 50000);
  options.seed = 2;
  EXPECT_NE(PromptBuilder(trace, options, nullptr).build(0, 0, {}, {}), first);
  // As tools for other engines compute it: splitmix64 of (seed, block) and position.
  options = {.seed = 1, .vocab_size = 150000};
  EXPECT_EQ(PromptBuilder(trace, options, nullptr).block_token(0, 0), 72706);
}

std::vector<TokenId> letters(std::string_view text) {
  return {text.begin(), text.end()};
}

Trace text_trace() {
  return parse_trace(
      {{"t",
        R"([{"id":"c","messages":[{"role":"user","content":"abcdef"},{"role":"assistant","content":"XY"},{"role":"user","content":"ghi"}]}])"}},
      {});
}

TEST(PromptBuilder, TextGoesOnFromTheRecordedOrTheOwnReply) {
  const Trace trace = text_trace();
  PromptOptions options;
  options.vocab_size = 200;
  const auto text = [](const std::vector<TokenId>& tokens) {
    return std::string(tokens.begin(), tokens.end());
  };
  const PromptBuilder recorded(trace, options, letters);
  const auto first = recorded.build(0, 0, {}, {});
  EXPECT_EQ(text(first), "<|im_start|>user\nabcdef<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text(recorded.build(0, 1, first, letters("own"))),
            text(first) + "XY<|im_end|>\n<|im_start|>user\nghi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(recorded.output_tokens(0, 0), 2);
  options.own_replies = true;
  options.first_prompt_tokens = static_cast<int>(first.size()) - 4;
  options.output_tokens = 9;
  const PromptBuilder own(trace, options, letters);
  const auto cut = own.build(0, 0, {}, {});
  EXPECT_EQ(text(cut), "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(text(own.build(0, 1, cut, letters("own"))), HasSubstr("assistant\nown<|im_end|>"));
  EXPECT_EQ(own.output_tokens(0, 0), 9);
  EXPECT_THROW(PromptBuilder(trace, options, nullptr), Error);
}

TEST(WindowRule, ParsesAndRefuses) {
  EXPECT_EQ(parse_window("paper").kind, WindowRule::Kind::kPaper);
  EXPECT_EQ(parse_window("1.5:20").end, 20 * kSecond);
  for (const char* bad : {"", "5", "5:", ":5", "9:3", "a:b", "papers"})
    EXPECT_THROW(parse_window(bad), Error) << bad;
}

TEST(Window, ThePapersIntervalOrANote) {
  RunRecord run;
  run.duration = 1000 * kSecond;
  for (int t = 0; t < 200; ++t) {
    TurnRecord turn;
    turn.stats.output_tokens = 1;
    turn.stats.finished = (t + 1) * kSecond;
    run.turns.push_back(turn);
  }
  const std::vector<SessionTimes> sessions = {
      {0, 60 * kSecond}, {70 * kSecond, 150 * kSecond}, {5, 180 * kSecond}};
  const WindowRule rule{WindowRule::Kind::kPaper, 0, 0};
  const Window window = make_window(rule, run, sessions, 0);
  EXPECT_EQ(window.begin, 128 * kSecond);
  EXPECT_EQ(window.end,
            150 * kSecond);  // the session that ended at 60 s did before all had started
  EXPECT_EQ(window.note, "");
  run.turns.resize(100);
  EXPECT_THAT(make_window(rule, run, sessions, 0).note, HasSubstr("empty"));
}

class DriverTest : public testing::Test {
 protected:
  DriverTest() {
    MemoryLayoutOptions options;
    options.page_bytes = 4 * kKiB;
    options.device_bytes = 8 * kMiB;
    layout_ =
        make_memory_layout(load_model_config(VAMP_SOURCE_DIR "/tests/golden/qwen3_moe"), options);
    trace_ = make_sweep({.sessions = 5,
                         .turns = 4,
                         .kv_bytes_per_session = 600,
                         .kv_bytes_per_token = 1,
                         .output_tokens = 8,
                         .think = kSecond});
    replay_.think_jitter = 0.2;
  }
  ReplayResult run(const std::string& policy = "static") {
    VirtualClock clock;
    ScriptedExecutor executor(clock, 10e3);
    PromptOptions prompt_options;
    prompt_options.vocab_size = 500;
    const PromptBuilder prompts(trace_, prompt_options, nullptr);
    ReplayDriver driver(trace_, prompts, replay_);
    driver.stop_requested = stop_;
    Engine engine({}, layout_, make_policy(policy, {}, layout_), executor, clock, driver);
    EngineTarget target(engine, clock);
    ReplayResult result = driver.run(target, clock);
    engine.check_invariants();
    EXPECT_EQ(executor.in_flight(), 0);
    return result;
  }

  MemoryLayout layout_;
  Trace trace_;
  ReplayOptions replay_;
  std::function<bool()> stop_;
};

TEST_F(DriverTest, TurnsOfASessionFollowEachOtherAfterTheThinkTime) {
  replay_.sessions = 2;
  const ReplayResult result = run();
  EXPECT_EQ(result.record.turns.size(), 20u);
  std::map<int, Micros> ended;
  for (const TurnRecord& turn : result.record.turns) {
    EXPECT_TRUE(turn.answered()) << turn.error;
    EXPECT_EQ(turn.stats.output_tokens, 8);
    if (turn.turn > 0) {
      EXPECT_NEAR(turn.stats.arrival - ended[turn.session], turn.think, 1e-6);
      EXPECT_NEAR(turn.think, kSecond, 0.2 * kSecond);
      EXPECT_GT(turn.stats.cached_tokens, 0);
    }
    ended[turn.session] = turn.stats.finished;
  }
  // Two at once: the third session starts when the first ends.
  std::vector<Micros> ends;
  for (const auto& [session, time] : ended) ends.push_back(time);
  const auto third =
      std::find_if(result.record.turns.begin(), result.record.turns.end(),
                   [](const TurnRecord& turn) { return turn.session == 2 && turn.turn == 0; });
  EXPECT_EQ(third->stats.arrival, std::min(ended[0], ended[1]));
}

TEST_F(DriverTest, SameSeedSameRunAndSameAnswersUnderAnyPolicy) {
  std::vector<ReplayResult> runs;
  runs.push_back(run());
  runs.push_back(run());
  ASSERT_EQ(runs[0].record.steps.size(), runs[1].record.steps.size());
  EXPECT_EQ(runs[0].record.duration, runs[1].record.duration);
  const AnswerComparison same = compare_answers(runs);
  EXPECT_EQ(same.compared, 20);
  EXPECT_EQ(same.identical, 20);
  runs[1].answers[2][1][3] += 1;
  const AnswerComparison other = compare_answers(runs);
  EXPECT_EQ(other.identical, 19);
  EXPECT_THAT(other.first_difference, HasSubstr("session 3 turn 2"));
}

TEST_F(DriverTest, ACutRunKeepsWhatWasMeasured) {
  replay_.max_duration = 2 * kSecond;
  const ReplayResult cut = run();
  EXPECT_FALSE(cut.interrupted);
  EXPECT_THAT(cut.record.cut, HasSubstr("cut after 2 s"));
  EXPECT_GT(cut.record.turns.size(), 4u);
  EXPECT_LT(cut.record.turns.size(), 20u);
  int asked = 0;
  stop_ = [&asked] { return ++asked > 30; };
  replay_.max_duration = 1e12;
  const ReplayResult interrupted = run();
  EXPECT_TRUE(interrupted.interrupted);
  EXPECT_FALSE(interrupted.record.turns.empty());
}

TEST_F(DriverTest, ATurnThatCanNeverRunEndsItsSession) {
  std::get<BlockPrompt>(trace_.sessions[1].turns[2].prompt).tokens = 1 << 20;
  std::get<BlockPrompt>(trace_.sessions[1].turns[2].prompt).blocks.resize(1 << 16, 5);
  const ReplayResult result = run();
  EXPECT_EQ(result.record.turns.size(), 19u);
  int failed = 0;
  for (const TurnRecord& turn : result.record.turns) failed += turn.error.empty() ? 0 : 1;
  EXPECT_EQ(failed, 1);
}

}  // namespace
}  // namespace vamp
