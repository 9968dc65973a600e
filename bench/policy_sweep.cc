// Policies side by side on simulated machines: the controlled sweep (sessions that grow by equal
// steps) over sessions, think time, link speed and expert skew, or sessions from a file. Prints a
// table and, as its last line, one JSON object. Every figure is simulated.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "sim/closed_loop.h"
#include "sim/model_shapes.h"

namespace vamp {
namespace {

// A model on a machine with a budget.
struct Platform {
  std::string name;
  ModelConfig model;
  std::string machine;
  MemoryLayoutOptions layout;
  SchedulerConfig scheduler;
  GrowthOptions growth;
  std::vector<int> sessions;
  size_t host_bytes = 0;
};

Platform qwen30b_h200(double percent) {
  Platform p{.name = "qwen3-30b",
             .model = qwen3_30b_a3b(),
             .machine = "h200",
             .layout = {},
             .scheduler = {},
             .growth = {},
             .sessions = {2, 4, 8, 16, 32},
             .host_bytes = 48 * kGiB};
  p.layout.max_offload_percent = percent;
  // Experts, other weights, and a pool of 8 GiB: 87,376 tokens.
  p.layout.device_bytes = 0;
  p.scheduler.max_num_seqs = 128;
  p.growth.final_tokens = 40000;
  p.growth.output_tokens = 240;
  return p;
}

Platform qwen_next_h100(double percent) {
  Platform p{.name = "qwen3-next-tp2",
             .model = qwen3_next_80b_a3b(),
             .machine = "h100-pcie-94g",
             .layout = {},
             .scheduler = {},
             .growth = {},
             .sessions = {8, 16, 24, 28},
             .host_bytes = 48 * kGiB};
  p.layout.tensor_parallel = 2;
  p.layout.max_offload_percent = percent;
  p.layout.round_to_increment = true;
  p.growth.final_tokens = 74000;  // 0.85 GiB a GPU
  p.growth.output_tokens = 128;
  return p;
}

Platform demo_cpu(double percent) {
  Platform p{.name = "smollm2-cpu",
             .model = smollm2_moe(16, 768),
             .machine = "cpu",
             .layout = {},
             .scheduler = {},
             .growth = {},
             .sessions = {2, 4, 8, 12},
             .host_bytes = kGiB};
  p.layout.max_offload_percent = percent;
  p.layout.page_bytes = 64 * kKiB;
  p.scheduler.max_num_seqs = 2;
  p.scheduler.max_num_batched_tokens = 256;
  p.growth.turns = 8;
  p.growth.final_tokens = 960;
  p.growth.first_share = 400.0 / 960;
  p.growth.output_tokens = 16;
  return p;
}

size_t pool_bytes_of(const Platform& platform) {
  if (platform.name == "qwen3-30b") return 8 * kGiB;
  if (platform.name == "qwen3-next-tp2")
    return static_cast<size_t>(8.02 * static_cast<double>(kGiB));
  return 88 * kMiB;
}

// The budget under which the pool has the wanted size with every expert resident.
MemoryLayout layout_with_pool(const Platform& platform) {
  MemoryLayoutOptions options = platform.layout;
  options.device_bytes = size_t{1} << 40;
  const MemoryLayout all = make_memory_layout(platform.model, options);
  options.device_bytes = all.expert_bytes() + all.dense_weight_bytes + pool_bytes_of(platform);
  return make_memory_layout(platform.model, options);
}

// Lines "session prompt_tokens output_tokens think_us", turns in order.
std::vector<SessionScript> read_sessions(const std::string& path, int shared_prefix) {
  std::ifstream file(path);
  if (!file) throw Error("cannot read {}", path);
  std::vector<SessionScript> sessions;
  std::map<std::string, size_t> index;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream row(line);
    std::string name;
    SessionScript::Turn turn;
    if (!(row >> name >> turn.prompt_tokens >> turn.output_tokens >> turn.think)) {
      throw Error("{}: expected \"session prompt output think_us\", not '{}'", path, line);
    }
    const auto [at, added] = index.emplace(name, sessions.size());
    if (added) sessions.push_back({.turns = {}, .shared_prefix_tokens = shared_prefix});
    sessions[at->second].turns.push_back(turn);
  }
  return sessions;
}

struct Options {
  std::vector<std::string> platforms = {"qwen3-30b", "qwen3-next-tp2", "smollm2-cpu"};
  std::vector<std::string> policies = {"static", "paper", "priced-nohost", "priced-noexperts",
                                       "priced"};
  std::vector<double> think = {2, 10}, link = {1, 8}, cold = {1, 0.05};
  std::vector<int> sessions;  // empty: the platform's own
  double percent = 20;
  std::string file;
  int shared_prefix = 0;
  double think_cap = 20;
  bool plain_lru = false;
};

nlohmann::json run_point(const Platform& platform, const Options& options, int sessions,
                         double think, double link, double cold, const std::string& policy) {
  const MemoryLayout layout = layout_with_pool(platform);
  ClosedLoopOptions loop;
  loop.policy = policy;
  loop.scheduler = platform.scheduler;
  loop.scheduler.host_blocks = static_cast<int>(platform.host_bytes / layout.block_bytes);
  loop.sim.machine = machine_profile(platform.machine);
  loop.sim.machine.link_up_gbps *= link;
  loop.sim.machine.link_down_gbps *= link;
  loop.sim.machine.gather_gbps *= link;
  if (cold < 1) {
    loop.sim.routing.cold_share = options.percent / 100;
    loop.sim.routing.cold_popularity = cold;
  }
  loop.policies = policy_config_for(platform.model, layout, loop.sim);
  loop.policies.priced.queue_aware_reuse = !options.plain_lru;
  std::vector<SessionScript> scripts;
  if (options.file.empty()) {
    GrowthOptions growth = platform.growth;
    growth.sessions = sessions;
    growth.think = think * kSecond;
    scripts = growing_sessions(growth);
  } else {
    scripts = read_sessions(options.file, options.shared_prefix);
    for (SessionScript& script : scripts) {
      for (auto& turn : script.turns)
        turn.think = std::min(turn.think, options.think_cap * kSecond);
    }
    loop.concurrency = sessions;
  }
  const auto start = std::chrono::steady_clock::now();
  const ClosedLoopResult r = run_closed_loop(platform.model, layout, scripts, loop);
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(
      "{:<15} {:>3} {:>5.1f} {:>4.0f} {:>5.2f} {:<17} {:>7.3f} {:>7.2f} {:>7.2f} {:>7.2f} {:>7.1f} "
      "{:>5.1f}% {:>6.0f} {:>6.1f} {:>7.2f}s\n",
      platform.name, sessions, think, link, cold, policy, r.requests_per_s, r.ttft_p50 / 1e6,
      r.ttft_p90 / 1e6, r.ttft_p99 / 1e6, r.tpot_mean / 1e3, 100 * r.hit_rate_warm,
      r.preemptions_per_1000, 100 * r.mean_groups_out / std::max(1, layout.total_groups()), wall);
  std::string decisions;
  for (int k = 0; k < kNumActionKinds; ++k) {
    decisions += fmt::format(" {} {}", action_name(static_cast<ActionKind>(k)), r.decisions[k]);
  }
  std::fflush(stdout);
  return {{"platform", platform.name},
          {"sessions", sessions},
          {"think_s", think},
          {"link", link},
          {"cold_popularity", cold},
          {"policy", policy},
          {"requests_per_s", r.requests_per_s},
          {"output_tokens_per_s", r.output_tokens_per_s},
          {"ttft_p50_s", r.ttft_p50 / 1e6},
          {"ttft_p90_s", r.ttft_p90 / 1e6},
          {"ttft_p99_s", r.ttft_p99 / 1e6},
          {"tpot_mean_ms", r.tpot_mean / 1e3},
          {"hit_rate_warm", r.hit_rate_warm},
          {"preemptions_per_1000", r.preemptions_per_1000},
          {"queue_mean_s", r.queue_mean / 1e6},
          {"experts_out_percent", 100 * r.mean_groups_out / std::max(1, layout.total_groups())},
          {"decisions", decisions},
          {"steps", r.steps},
          {"wall_s", wall}};
}

// Where each policy loses most to `static` at the same point: the claim "never worse" in one table.
void print_losses(const nlohmann::json& points) {
  struct Metric {
    const char *key, *name;
    bool more_is_better;
  };
  constexpr Metric kMetrics[] = {{"requests_per_s", "req/s", true},
                                 {"ttft_p90_s", "TTFT p90", false},
                                 {"tpot_mean_ms", "TPOT", false}};
  struct Loss {
    double percent = 0;
    std::string where = "nowhere";
    int points = 0;  // where it is over 1%
  };
  std::map<std::string, std::map<std::string, Loss>> losses;
  const nlohmann::json* base = nullptr;  // comes before the others of its point
  for (const nlohmann::json& point : points) {
    if (point["policy"] == "static") {
      base = &point;
    } else if (base != nullptr) {
      for (const Metric& metric : kMetrics) {
        const double ours = point[metric.key], theirs = (*base)[metric.key];
        const double percent =
            100 * (metric.more_is_better ? theirs / std::max(ours, 1e-9) : ours / theirs) - 100;
        Loss& loss = losses[point["policy"]][metric.name];
        loss.points += percent > 1;
        if (percent <= loss.percent) continue;
        loss.percent = percent;
        loss.where = fmt::format("{}, {} sessions, think {} s, link x {}, cold {}",
                                 point["platform"].get<std::string>(), point["sessions"].get<int>(),
                                 point["think_s"].get<double>(), point["link"].get<double>(),
                                 point["cold_popularity"].get<double>());
      }
    }
  }
  for (const auto& [policy, by_metric] : losses) {
    for (const auto& [metric, loss] : by_metric) {
      fmt::print(
          "{:<17} {:<8} at most {:>6.1f}% worse than static, over 1% at {:>2} points; most at {}\n",
          policy, metric, loss.percent, loss.points, loss.where);
    }
  }
}

void run(const Options& options) {
  fmt::print(
      "simulated: {}% of experts may go\n{:<15} {:>3} {:>5} {:>4} {:>5} {:<17} {:>7} {:>7} {:>7} "
      "{:>7} {:>7} {:>6} {:>6} {:>6} {:>8}\n",
      options.percent, "platform", "c", "think", "link", "cold", "policy", "req/s", "ttft50",
      "ttft90", "ttft99", "tpot ms", "warm", "pre/k", "out %", "wall");
  nlohmann::json points = nlohmann::json::array();
  for (const std::string& name : options.platforms) {
    const Platform platform = name == "qwen3-30b"        ? qwen30b_h200(options.percent)
                              : name == "qwen3-next-tp2" ? qwen_next_h100(options.percent)
                                                         : demo_cpu(options.percent);
    for (const double think : options.think)
      for (const double link : options.link)
        for (const double cold : options.cold)
          for (const int c : options.sessions.empty() ? platform.sessions : options.sessions)
            for (const std::string& policy : options.policies)
              points.push_back(run_point(platform, options, c, think, link, cold, policy));
  }
  print_losses(points);
  fmt::print("{}\n", nlohmann::json{{"simulated", true}, {"points", points}}.dump());
}

}  // namespace
}  // namespace vamp

int main(int argc, char** argv) {
  vamp::Options options;
  CLI::App app("Policies side by side on simulated machines");
  app.add_option("--platform", options.platforms)
      ->delimiter(',')
      ->check(CLI::IsMember({"qwen3-30b", "qwen3-next-tp2", "smollm2-cpu"}));
  app.add_option("--policy", options.policies)->delimiter(',');
  app.add_option("--think", options.think, "seconds")->delimiter(',');
  app.add_option("--link", options.link, "times the machine's link rate")->delimiter(',');
  app.add_option("--cold", options.cold, "popularity of the coldest experts, 1: even")
      ->delimiter(',');
  app.add_option("--sessions", options.sessions, "alive at once")->delimiter(',');
  app.add_option("--max-offload-ratio", options.percent, "percent");
  app.add_option("--file", options.file, "sessions: lines of 'session prompt output think_us'");
  app.add_option("--shared-prefix", options.shared_prefix,
                 "tokens that all sessions of the file share");
  app.add_flag("--plain-lru", options.plain_lru, "priced: evict in order of last use");
  app.add_option("--think-cap", options.think_cap, "seconds");
  CLI11_PARSE(app, argc, argv);
  try {
    vamp::run(options);
  } catch (const vamp::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
