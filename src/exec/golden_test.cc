// The forward pass against Hugging Face transformers, over tests/golden.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "exec/executor_test_support.h"
#include "kernels/cpu/cpu_ops.h"
#include "memory/host_virtual_memory.h"

namespace vamp {
namespace {

using test::golden_config;

nlohmann::json read_golden(const ExecutorConfig& config) {
  std::ifstream file(config.model / "golden.json");
  return nlohmann::json::parse(file);
}

// The parts below the executor, to get at logits.
class LogitsRunner {
 public:
  explicit LogitsRunner(const ExecutorConfig& config)
      : ops_(make_ops(config)),
        model_(std::make_unique<LoadedModel>(config, *ops_, LoadProgress{})),
        memory_({.granularity = model_->layout().page_bytes}),
        partition_(model_->layout(), model_->layout().min_groups_out, memory_, model_->experts()),
        moe_(model_->config(), partition_, model_->experts(), clock_, *ops_,
             config.max_num_batched_tokens),
        runner_(model_->config(), model_->weights(), *ops_, moe_, runner_limits(config)) {}

  // After the last of `tokens`, all computed in one pass.
  std::vector<float> logits(const std::vector<TokenId>& tokens) {
    const MemoryLayout& layout = model_->layout();
    StepPlan plan;
    StartRequest start;
    start.tokens = tokens;
    start.prompt_tokens = static_cast<int>(tokens.size());
    for (int b = 0; b * layout.block_tokens < start.prompt_tokens; ++b) start.blocks.push_back(b);
    plan.start = {start};
    plan.batch = {{0, 0, start.prompt_tokens, true, {}}};
    RequestTable table(model_->config().vocab_size);
    table.apply(plan);
    StepBatch batch;
    batch.build(plan, table, layout.block_tokens);
    moe_.begin_step(StagingMode::kActivated);
    const auto result = runner_.forward(batch, kv_cache(*model_, *ops_, partition_.kv()));
    moe_.end_step();
    return {result.begin(), result.end()};
  }

 private:
  RealClock clock_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<LoadedModel> model_;
  HostVirtualMemory memory_;
  HbmPartition partition_;
  MoeExecutor moe_;
  ModelRunner runner_;
};

struct Position {
  std::vector<TokenId> tokens;  // whose last one the logits follow
  std::vector<TokenId> ids;
  std::vector<float> values, bf16;
};

std::vector<Position> positions(const nlohmann::json& golden) {
  std::vector<Position> result;
  for (const auto& c : golden["cases"]) {
    std::vector<TokenId> tokens = c["prompt"];
    for (TokenId t : c["greedy"]) tokens.push_back(t);
    for (const auto& l : c["logits"]) {
      const auto end = tokens.begin() + l["position"].get<int>() + 1;
      result.push_back({{tokens.begin(), end}, l["ids"], l["values"], l["bf16"]});
    }
  }
  return result;
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, F32TokensAreIdentical) {
  const ExecutorConfig config = golden_config(GetParam(), 0);
  test::Tokens prompts, expected;
  const nlohmann::json golden = read_golden(config);
  ASSERT_GE(golden["cases"].size(), 4u);
  for (const auto& c : golden["cases"]) {
    const RequestId id = 3 * prompts.size();  // greedy
    prompts[id] = c["prompt"].get<std::vector<TokenId>>();
    expected[id] = c["greedy"].get<std::vector<TokenId>>();
  }
  EXPECT_EQ(test::run_plainly(config, prompts, static_cast<int>(expected[0].size())), expected);
}

TEST_P(Golden, F32LogitsAgree) {
  const ExecutorConfig config = golden_config(GetParam(), 0);
  LogitsRunner runner(config);
  for (const Position& p : positions(read_golden(config))) {
    const std::vector<float> logits = runner.logits(p.tokens);
    for (size_t i = 0; i < p.ids.size(); ++i) {
      ASSERT_NEAR(logits[p.ids[i]], p.values[i], 1e-4f * std::max(1.0f, std::fabs(p.values[i])))
          << "after " << p.tokens.size() << " tokens, token " << p.ids[i];
    }
  }
}

// The root mean square of what separates two runs at one position.
float distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return static_cast<float>(std::sqrt(sum / static_cast<double>(a.size())));
}

float quantile(std::vector<float> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

TEST_P(Golden, Bf16LogitsAreNoFartherOffThanTheLibrarysOwn) {
  const std::vector<CpuIsa> isas = supported_cpu_isas();
  if (std::count(isas.begin(), isas.end(), CpuIsa::kAvx512Bf16) == 0) {
    GTEST_SKIP() << "this processor does not multiply bf16";
  }
  ExecutorConfig config = golden_config(GetParam(), 0);
  config.dtype = ComputeDType::kBf16;
  LogitsRunner runner(config);
  const nlohmann::json golden = read_golden(config);
  std::vector<float> ours, theirs;
  for (const Position& p : positions(golden)) {
    const std::vector<float> logits = runner.logits(p.tokens);
    std::vector<float> chosen;
    for (TokenId id : p.ids) chosen.push_back(logits[id]);
    ours.push_back(distance(chosen, p.values));
    theirs.push_back(distance(p.bf16, p.values));
  }
  // The lower quarter is rounding alone. Beyond it are ever more positions at which rounding chose
  // another expert somewhere before; where that happens is chance.
  EXPECT_LE(quantile(ours, 0.25), 1.1 * quantile(theirs, 0.25));
  EXPECT_LE(quantile(ours, 0.5), golden["bf16"]["position_rms"]["p90"].get<float>());
  EXPECT_LE(quantile(ours, 0.9), golden["bf16"]["position_rms"]["max"].get<float>());
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Golden,
                         testing::Values("mixtral", "mixtral-llama3-tied-sharded", "qwen3_moe",
                                         "qwen3_moe-dense-layers", "qwen3_moe-yarn-bias",
                                         "qwen3_moe-linear-tied-f16"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace vamp
