// What a step costs the host: schedule() + update() + take_events() at 256 running requests with
// contexts of 4k tokens, with 10k, 100k and 1M cached blocks behind them and not one block free, so
// that every block a request grows by is a decision of the policy.
//
//   scheduler_bench [--policy NAME] [--steps N]
//
// The last line is a JSON object: medians in microseconds.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "core/make_policy.h"
#include "core/scheduler.h"

namespace {

using namespace vamp;

constexpr int kRequests = 256;
constexpr int kContext = 4096;
constexpr int kBlockTokens = 16;

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

// Blocks in the base pool only: nothing here moves the boundary.
MemoryLayout plain_pool(int blocks) {
  MemoryLayout layout;
  layout.page_bytes = 2 * kMiB;
  layout.block_tokens = kBlockTokens;
  layout.block_bytes = 192 * kKiB;
  layout.kv_bytes_per_token = layout.block_bytes / kBlockTokens;
  layout.base_pool_bytes = layout.block_bytes * static_cast<size_t>(blocks);
  layout.set_order({});
  return layout;
}

// Answers a plan at once, with random tokens.
StepResult answer(const StepPlan& plan, Random& random) {
  StepResult result;
  result.step = plan.step;
  result.end = 1000;
  for (const BatchEntry& entry : plan.batch) {
    if (!entry.sample) continue;
    SampledToken& sampled = result.tokens.emplace_back();
    sampled.slot = entry.slot;
    sampled.token = static_cast<TokenId>(random.below(50000));
  }
  return result;
}

class Bench {
 public:
  Bench(int cached_blocks, const std::string& policy)
      : layout_(plain_pool(cached_blocks + kRequests * kContext / kBlockTokens + 2 * kRequests)),
        scheduler_(config(), layout_, make_policy(policy, {}, layout_)) {
    // Requests that come and go leave their prompts in the cache until nothing is free.
    while (scheduler_.stats().cached_blocks < cached_blocks) {
      add(1);
      finish_all();
    }
    for (int i = 0; i < kRequests; ++i) add(1 << 20);
    while (scheduler_.stats().waiting > 0 || prefilling_) step();
    while (scheduler_.stats().free_blocks > 0) step();
  }

  double median_step(int steps) {
    std::vector<double> times;
    for (int i = 0; i < steps; ++i) times.push_back(step());
    VAMP_CHECK(scheduler_.stats().running == kRequests, "requests were lost");
    std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
    return times[static_cast<size_t>(steps / 2)];
  }

 private:
  static SchedulerConfig config() {
    SchedulerConfig config;
    config.max_num_seqs = kRequests;
    config.max_num_batched_tokens = 64 * kContext;
    return config;
  }

  void add(int max_tokens) {
    RequestInput input;
    input.id = next_id_++;
    // Lengths differ, so that in every step some sixteen requests grow by a block.
    const int length = kContext - static_cast<int>(random_.below(kBlockTokens));
    for (int i = 0; i < length; ++i) {
      input.prompt.push_back(static_cast<TokenId>(random_.below(50000)));
    }
    input.sampling.max_tokens =
        std::min(max_tokens, layout_.max_blocks() * kBlockTokens - kContext);
    input.sampling.ignore_eos = true;
    input.arrival = now_;
    const auto refused = scheduler_.add(std::move(input), now_);
    VAMP_CHECK(!refused, "{}", *refused);
  }

  // With one plan in flight, as an engine runs it.
  double step() {
    now_ += 20e3;
    const auto start = std::chrono::steady_clock::now();
    StepPlan plan = scheduler_.schedule(now_);
    double spent = microseconds_since(start);
    prefilling_ = plan.num_tokens() > kRequests || plan.batch.size() < kRequests;
    StepResult next;
    if (!plan.empty()) next = answer(plan, random_);
    const auto second = std::chrono::steady_clock::now();
    if (unanswered_.step != 0) scheduler_.update(unanswered_, now_);
    scheduler_.take_events();
    spent += microseconds_since(second);
    unanswered_ = std::move(next);
    return spent;
  }
  void finish_all() {
    while (!scheduler_.idle()) step();
  }

  MemoryLayout layout_;
  Scheduler scheduler_;
  Random random_{1};
  StepResult unanswered_;
  RequestId next_id_ = 1;
  Micros now_ = 0;
  bool prefilling_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Host cost of a scheduler step");
  std::string policy = "priced";
  int steps = 2000;
  app.add_option("--policy", policy, "what decides when blocks fall short")->capture_default_str();
  app.add_option("--steps", steps, "measured for each size, at most")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::vector<std::pair<int, double>> medians;
  for (const int cached : {10'000, 100'000, 1'000'000}) {
    Bench bench(cached, policy);
    // Growth eats the cached blocks: stop before they run out and somebody is preempted.
    const int most = cached * 9 / 10 * kBlockTokens / kRequests;
    medians.emplace_back(cached, bench.median_step(std::min(steps, most)));
    std::printf("%d running requests of %d tokens, %d cached blocks, policy %s: %.1f us a step\n",
                kRequests, kContext, cached, policy.c_str(), medians.back().second);
  }
  std::printf("{\"step_us_median_256\":%.1f,\"step_us_by_cached_blocks\":{", medians[0].second);
  for (size_t i = 0; i < medians.size(); ++i) {
    std::printf("%s\"%d\":%.1f", i == 0 ? "" : ",", medians[i].first, medians[i].second);
  }
  std::printf("}}\n");
  return 0;
}
