// What the executor samples and scores, and requests that fail by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "exec/executor_test_support.h"
#include "model/safetensors.h"

namespace vamp {
namespace {

using test::add_all;
using test::golden_config;
using test::run_plainly;
using test::single;
using test::start_request;
using test::Tokens;

TEST(CpuExecutor, TokensOutsideTheVocabularyFailTheirRequestAlone) {
  RealClock clock;
  CpuExecutor executor(golden_config("mixtral", 0), clock);
  StepPlan plan = single(1, {1, 2, 3}, {0, 1});
  plan.start.push_back(start_request(1, {4, 512, 5}, {2}));
  plan.start.push_back(start_request(2, {-7}, {3}));
  plan.batch.push_back({1, 0, 3, true, {}});
  plan.batch.push_back({2, 0, 1, true, {}});
  executor.submit(plan);
  const StepResult mixed = executor.wait();
  ASSERT_EQ(mixed.tokens.size(), 3u);
  EXPECT_FALSE(mixed.tokens[0].invalid);
  EXPECT_TRUE(mixed.tokens[1].invalid);
  EXPECT_TRUE(mixed.tokens[2].invalid);

  StepPlan alone = single(2, {1, 2, 3}, {4, 5});
  alone.reset = true;
  executor.submit(alone);
  EXPECT_EQ(executor.wait().tokens[0].token, mixed.tokens[0].token);
}

// What a prompt's tokens are scored as is what they have when they are sampled, to the bit, however
// the prompt is cut.
TEST(CpuExecutor, ThePromptsTokensAreScored) {
  RealClock clock;
  CpuExecutor executor(golden_config("mixtral", 0), clock);
  const std::vector<TokenId> prompt = {7, 300, 41, 41, 5, 99, 500, 2, 8};
  std::vector<std::pair<TokenId, float>> expected;
  StepId step = 0;
  for (size_t end = 1; end < prompt.size(); ++end) {
    StepPlan plan = single(++step, {prompt.begin(), prompt.begin() + end}, {0, 1, 2});
    plan.reset = true;
    plan.start[0].sampling.logprobs = 2;
    plan.start[0].sampling.logit_bias = {{prompt[end], 100.0f}};  // of the raw logits, as ever
    executor.submit(plan);
    const SampledToken token = executor.wait().tokens.at(0);
    ASSERT_EQ(token.token, prompt[end]);
    expected.emplace_back(token.token, token.logprob);
  }
  for (const int chunk : {1, 2, 3, 9}) {
    std::vector<std::pair<TokenId, float>> scored;
    for (int first = 0; first < 9; first += chunk) {
      StepPlan plan;
      plan.step = ++step;
      plan.reset = first == 0;
      if (first == 0) {
        plan.start = {start_request(0, prompt, {0, 1, 2})};
        plan.start[0].sampling.prompt_logprobs = 2;
      }
      const int count = std::min(chunk, 9 - first);
      plan.batch = {{0, first, count, first + count == 9, {}, std::min(count, 8 - first)}};
      executor.submit(plan);
      const StepResult result = executor.wait();
      EXPECT_EQ(result.tokens.size(), first + count == 9 ? 1u : 0u);
      for (const SampledToken& token : result.scored) {
        scored.emplace_back(token.token, token.logprob);
        EXPECT_EQ(token.top_logprobs.size(), 2u);
        EXPECT_FALSE(token.invalid);
      }
    }
    EXPECT_EQ(scored, expected) << "in chunks of " << chunk;
  }
}

// Allows everything, and throws when it is started, asked for a mask or given a token.
struct ThrowingGrammar final : TokenGrammar {
  enum Place { kStart, kFill, kAccept };
  explicit ThrowingGrammar(Place at) : place(at) {}
  struct Matcher final : TokenMatcher {
    explicit Matcher(Place at) : place(at) {}
    void fill(std::span<uint32_t> allowed) override {
      if (place == kFill) throw std::runtime_error("no mask");
      std::fill(allowed.begin(), allowed.end(), ~0u);
    }
    bool accept(TokenId) override {
      if (place == kAccept) throw std::runtime_error("no state");
      return true;
    }
    Place place;
  };
  std::unique_ptr<TokenMatcher> start(std::span<const TokenId>) const override {
    if (place == kStart) throw std::runtime_error("no start");
    return std::make_unique<Matcher>(place);
  }
  Place place;
};

TEST(CpuExecutor, AGrammarThatThrowsFailsItsRequestAlone) {
  RealClock clock;
  CpuExecutor executor(golden_config("mixtral", 0), clock);
  const auto run = [&](const StepPlan& plan) {
    executor.submit(plan);
    return executor.wait().tokens;
  };
  StepPlan next;
  next.step = 2;
  next.batch = {{0, 3, 1, true, {}}};
  const TokenId first = run(single(1, {1, 2, 3}, {0, 1}))[0].token;
  const TokenId second = run(next)[0].token;

  using Place = ThrowingGrammar::Place;
  for (const Place place : {Place::kStart, Place::kFill, Place::kAccept}) {
    StepPlan plan = single(1, {1, 2, 3}, {0, 1});
    plan.reset = true;
    plan.start.push_back(start_request(1, {1, 2, 3}, {2, 3}));
    plan.start.back().sampling.grammar = std::make_shared<ThrowingGrammar>(place);
    plan.batch.push_back({1, 0, 3, true, {}});
    const std::vector<SampledToken> tokens = run(plan);
    EXPECT_EQ(tokens.at(0).token, first);
    EXPECT_EQ(tokens.at(1).invalid, place != Place::kAccept);  // its first mask came
    StepPlan both = next;
    both.batch.push_back({1, 3, 1, true, {}});
    const std::vector<SampledToken> more = run(both);
    EXPECT_EQ(more.at(0).token, second);
    EXPECT_FALSE(more.at(0).invalid);
    EXPECT_TRUE(more.at(1).invalid);
  }
}

// A copy of a golden checkpoint in which one token's embedding is not a number.
class PoisonedModel {
 public:
  PoisonedModel(const ExecutorConfig& original, TokenId token)
      : folder_(std::filesystem::path(testing::TempDir()) / "poisoned") {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(original.model, folder_);
    const std::filesystem::path file = folder_ / "model.safetensors";
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    std::vector<std::byte> bytes(std::filesystem::file_size(file));
    stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    for (const SafetensorsEntry& entry : parse_safetensors_header(bytes, bytes.size(), file)) {
      if (entry.name != "model.embed_tokens.weight") continue;
      const size_t row = (entry.end - entry.begin) / entry.shape[0];
      const std::vector<char> nan(row, static_cast<char>(0xFF));  // bf16 NaNs
      stream.seekp(static_cast<std::streamoff>(entry.begin + token * row));
      stream.write(nan.data(), static_cast<std::streamsize>(nan.size()));
    }
  }
  ~PoisonedModel() { std::filesystem::remove_all(folder_); }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

TEST(CpuExecutor, NanLogitsFailTheirRequestAlone) {
  ExecutorConfig config = golden_config("mixtral", 0);
  const Tokens clean = {{0, {1, 2, 3, 4, 5}}, {3, {9, 8, 7}}};
  const Tokens expected = run_plainly(config, clean, 10);
  const PoisonedModel model(config, 100);
  config.model = model.folder();
  RealClock clock;
  CpuExecutor executor(config, clock);
  RandomSchedule schedule(executor, executor.layout(), {}, 5);
  add_all(schedule, clean, 10);
  // Comes and goes several times, so that its blocks, full of NaN, are used again by the others.
  for (RequestId id : {6, 9, 12, 15}) schedule.add(id, {50, 100, 51}, test::make_sampling(id, 3));
  Tokens outputs = schedule.run();
  EXPECT_THAT(schedule.invalid(), testing::ElementsAre(6, 9, 12, 15));
  EXPECT_EQ(outputs[0], expected.at(0));
  EXPECT_EQ(outputs[3], expected.at(3));
}

}  // namespace
}  // namespace vamp
