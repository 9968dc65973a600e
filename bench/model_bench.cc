// How fast a checkpoint runs on the CPU: prefill of one prompt, and decode at two batch sizes.
//
//   model_bench MODEL [--threads 1] [--dtype auto] [--prefill 1024] [--context 64] [--steps 32] ...
//
// Drives a CpuExecutor by plans of its own, so that what is measured is what the engine gets. Each
// figure is the best of --repeat runs. The last line is {"prefill":…,"decode1":…,"decode8":…} in
// tokens a second. With a --device-memory below the weights' size it shows what staging costs:
// "staged_mib" and "stall_ms" are of a mean decode step.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "base/random.h"
#include "exec/cpu_executor.h"

namespace vamp {
namespace {

struct Bench {
  ExecutorConfig config;
  int prefill = 1024;
  int context = 64;  // tokens before the decoded ones
  int steps = 32;    // decoded by each request
  int repeat = 3;
};

// Requests in slots 0 ... n-1, each with blocks of its own.
class Runner {
 public:
  Runner(CpuExecutor& executor) : executor_(executor) {}

  // Starts `requests` of `tokens` random tokens and computes all but the last one's logits. Returns
  // the time that took.
  Micros prefill(int requests, int tokens, int more) {
    StepPlan plan;
    plan.step = ++step_;
    plan.reset = true;
    BlockId next = 0;
    const int block = executor_.layout().block_tokens;
    for (RequestSlot slot = 0; slot < requests; ++slot) {
      StartRequest start;
      start.slot = slot;
      start.id = slot;
      for (int i = 0; i < tokens; ++i) {
        start.tokens.push_back(static_cast<TokenId>(random_.below(executor_.model().vocab_size)));
      }
      start.prompt_tokens = tokens;
      for (int b = 0; b * block < tokens + more; ++b) start.blocks.push_back(next++);
      plan.start.push_back(std::move(start));
      plan.batch.push_back({slot, 0, tokens, true, {}});
    }
    length_ = tokens + 1;
    return run(std::move(plan));
  }

  // Returns the time of all steps.
  Micros decode(int requests, int steps) {
    Micros sum = 0;
    decoded_ += steps;
    for (int i = 0; i < steps; ++i, ++length_) {
      StepPlan plan;
      plan.step = ++step_;
      for (RequestSlot slot = 0; slot < requests; ++slot) {
        plan.batch.push_back({slot, length_ - 1, 1, true, {}});
      }
      sum += run(std::move(plan));
      staged_ += static_cast<double>(last_.staging.staged_bytes);
      stall_ += last_.staging.stall;
    }
    return sum;
  }

  double staged_bytes() const { return staged_ / decoded_; }  // a decode step
  Micros stall() const { return stall_ / decoded_; }

 private:
  Micros run(StepPlan plan) {
    executor_.submit(std::move(plan));
    last_ = executor_.wait();
    if (!last_.executed) throw Error("a step was lost: {}", last_.failure);
    return last_.end - last_.start;
  }

  CpuExecutor& executor_;
  Random random_{1};
  StepId step_ = 0;
  int length_ = 0;
  StepResult last_;
  int decoded_ = 0;  // steps
  double staged_ = 0;
  Micros stall_ = 0;
};

void run(Bench bench) {
  RealClock clock;
  bench.config.max_num_batched_tokens = std::max(bench.prefill, 8 * bench.context);
  bench.config.max_num_seqs = 8;
  const int tokens = std::max(bench.prefill, 8 * (bench.context + bench.steps + 16));
  bench.config.min_pool = static_cast<size_t>(tokens) *
                          kv_bytes_per_token(load_model_config(bench.config.model), 1, DType::kF32);
  CpuExecutor executor(bench.config, clock);
  Runner runner(executor);
  Micros prefill = 1e30, decode1 = 1e30, decode8 = 1e30;
  for (int i = 0; i < bench.repeat; ++i) {
    prefill = std::min(prefill, runner.prefill(1, bench.prefill, 0));
    runner.prefill(1, bench.context, bench.steps + 1);
    decode1 = std::min(decode1, runner.decode(1, bench.steps));
    runner.prefill(8, bench.context, bench.steps + 1);
    decode8 = std::min(decode8, runner.decode(8, bench.steps));
  }
  fmt::print(
      "{{\"prefill\":{:.1f},\"decode1\":{:.2f},\"decode8\":{:.2f},\"threads\":{},"
      "\"staged_mib\":{:.1f},\"stall_ms\":{:.2f}}}\n",
      bench.prefill / prefill * kSecond, bench.steps / decode1 * kSecond,
      8 * bench.steps / decode8 * kSecond, bench.config.threads,
      runner.staged_bytes() / static_cast<double>(kMiB), runner.stall() / 1e3);
}

}  // namespace
}  // namespace vamp

int main(int argc, char** argv) {
  vamp::Bench bench;
  bench.config.threads = 1;
  std::string memory = "4GiB";
  CLI::App app{"Prefill and decode speed of a checkpoint on the CPU"};
  app.add_option("model", bench.config.model, "Hugging Face folder")->required();
  app.add_option("--threads", bench.config.threads, "Threads that compute");
  app.add_option("--device-memory", memory, "Budget for weights, KV and activations");
  app.add_option("--max-offload-ratio", bench.config.max_offload_ratio, "Percent of the experts");
  app.add_option("--prefill", bench.prefill, "Tokens of the prompt");
  app.add_option("--context", bench.context, "Tokens before the decoded ones");
  app.add_option("--steps", bench.steps, "Tokens decoded by each request");
  app.add_option("--repeat", bench.repeat, "Runs, of which the best counts");
  const std::map<std::string, vamp::ComputeDType> dtypes = {{"auto", vamp::ComputeDType::kAuto},
                                                            {"bfloat16", vamp::ComputeDType::kBf16},
                                                            {"float32", vamp::ComputeDType::kF32}};
  app.add_option("--dtype", bench.config.dtype, "auto, bfloat16 or float32")
      ->transform(CLI::CheckedTransformer(dtypes));
  const std::map<std::string, vamp::StagingMode> modes = {
      {"auto", vamp::StagingMode::kAuto},
      {"whole-region", vamp::StagingMode::kWholeRegion},
      {"activated", vamp::StagingMode::kActivated}};
  app.add_option("--staging", bench.config.staging, "auto, whole-region or activated")
      ->transform(CLI::CheckedTransformer(modes));
  app.add_flag_callback(
      "--dummy", [&] { bench.config.load_format = vamp::LoadFormat::kDummy; }, "Random weights");
  CLI11_PARSE(app, argc, argv);
  try {
    bench.config.device_memory = vamp::parse_bytes(memory);
    vamp::run(bench);
  } catch (const vamp::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
