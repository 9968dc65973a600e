#include "sim/closed_loop.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "base/random.h"

namespace vamp {
namespace {

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Sessions, their conversations, and when each one's next turn is due.
class Load {
 public:
  Load(const std::vector<SessionScript>& scripts, int concurrency, int vocab_size, uint64_t seed)
      : scripts_(scripts), states_(scripts.size()), vocab_size_(vocab_size) {
    const int live = concurrency > 0 ? concurrency : static_cast<int>(scripts.size());
    Random random(seed);
    // Starts are spread over a think time, else all sessions would move in step.
    for (int i = 0; i < live; ++i) start_next(random.uniform() * kSecond);
  }

  bool done() const { return due_.empty() && live_.empty(); }
  Micros next_due() const {
    return due_.empty() ? std::numeric_limits<double>::infinity() : due_.top().first;
  }
  RequestInput take_due() {
    const auto [time, session] = due_.top();
    due_.pop();
    State& state = states_[session];
    const SessionScript& script = scripts_[session];
    const auto length = static_cast<size_t>(script.turns[state.turn].prompt_tokens);
    for (size_t i = state.tokens.size(); i < length; ++i) {
      const bool shared = static_cast<int>(i) < script.shared_prefix_tokens;
      const uint64_t stream = shared ? 0 : session + 1;
      state.tokens.push_back(static_cast<TokenId>(
          Random((stream << 32) ^ (static_cast<uint64_t>(state.turn) << 24) * !shared ^ i).next() %
          static_cast<uint64_t>(vocab_size_)));
    }
    state.tokens.resize(length);
    RequestInput request;
    request.id = next_id_++;
    request.prompt = state.tokens;
    request.sampling.max_tokens = std::max(1, script.turns[state.turn].output_tokens);
    request.sampling.ignore_eos = true;
    request.reuse.session = session + 1;
    request.arrival = time;
    live_[request.id] = session;
    return request;
  }
  void token(RequestId id, TokenId token) { states_[live_.at(id)].tokens.push_back(token); }
  bool first_turn(RequestId id) const { return states_[live_.at(id)].turn == 0; }
  void finished(RequestId id, Micros now) {
    const size_t session = live_.at(id);
    live_.erase(id);
    State& state = states_[session];
    if (++state.turn < scripts_[session].turns.size()) {
      due_.push({now + scripts_[session].turns[state.turn].think, session});
    } else {
      state.tokens = {};
      start_next(now);
    }
  }

 private:
  struct State {
    size_t turn = 0;
    std::vector<TokenId> tokens;  // the conversation
  };
  using Due = std::pair<Micros, size_t>;
  void start_next(Micros now) {
    if (next_session_ < scripts_.size()) {
      due_.push({now + scripts_[next_session_].turns[0].think, next_session_});
      ++next_session_;
    }
  }
  const std::vector<SessionScript>& scripts_;
  std::vector<State> states_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::unordered_map<RequestId, size_t> live_;
  size_t next_session_ = 0;
  RequestId next_id_ = 1;
  int vocab_size_;
};

// Gathers figures while a run goes on.
struct Meter {
  ClosedLoopResult result;
  std::vector<double> ttft, tpot, queue;
  double warm_prompt = 0, warm_cached = 0, groups_time = 0, output_tokens = 0;
  uint64_t preemptions = 0;

  void turn(const RequestStats& stats, bool first) {
    ++result.turns;
    preemptions += static_cast<uint64_t>(stats.preemptions);
    output_tokens += stats.output_tokens;
    if (stats.output_tokens > 1) {
      tpot.push_back((stats.finished - stats.first_token) / (stats.output_tokens - 1));
    }
    if (first) return;
    ttft.push_back(stats.first_token - stats.arrival);
    queue.push_back(stats.queued);
    warm_prompt += stats.prompt_tokens;
    warm_cached += stats.cached_tokens + stats.host_cached_tokens;
  }
  void step(const StepResult& step, int groups_out, size_t block_bytes) {
    ++result.steps;
    groups_time += groups_out * (step.end - step.start);
    result.staged_bytes += static_cast<double>(step.staging.staged_bytes);
    result.promoted_bytes += static_cast<double>(step.promoted.size() * block_bytes);
    const auto mix = [&](uint64_t value) { result.hash = Random(result.hash ^ value).next(); };
    mix(step.step);
    mix(static_cast<uint64_t>(step.end * 1e3));
    for (const SampledToken& token : step.tokens) mix(static_cast<uint64_t>(token.token));
  }
  ClosedLoopResult finish(Micros end) {
    result.makespan = end;
    result.requests_per_s = result.turns / end * 1e6;
    result.output_tokens_per_s = output_tokens / end * 1e6;
    result.ttft_mean = mean(ttft);
    result.ttft_p50 = quantile(ttft, 0.5);
    result.ttft_p90 = quantile(ttft, 0.9);
    result.ttft_p99 = quantile(ttft, 0.99);
    result.queue_mean = mean(queue);
    result.tpot_mean = mean(tpot);
    result.tpot_p90 = quantile(tpot, 0.9);
    result.hit_rate_warm = warm_prompt > 0 ? warm_cached / warm_prompt : 0;
    result.preemptions_per_1000 =
        1e3 * static_cast<double>(preemptions) / std::max(1, result.turns);
    result.mean_groups_out = groups_time / end;
    return result;
  }
};

}  // namespace

std::vector<SessionScript> growing_sessions(const GrowthOptions& options) {
  Random random(options.seed);
  std::vector<SessionScript> sessions;
  for (int s = 0; s < options.sessions; ++s) {
    SessionScript script;
    const double first = options.first_share * options.final_tokens;
    const double growth = (options.final_tokens - first) / std::max(1, options.turns - 1);
    double length = first;
    for (int t = 0; t < options.turns; ++t) {
      const auto jitter = [&] { return 1 + options.jitter * (2 * random.uniform() - 1); };
      script.turns.push_back(
          {static_cast<int>(length), options.output_tokens, options.think * jitter()});
      length += std::max(growth * jitter(), options.output_tokens + 1.0);
    }
    sessions.push_back(std::move(script));
  }
  return sessions;
}

PolicyConfig policy_config_for(const ModelConfig& model, const MemoryLayout& layout,
                               const SimConfig& sim) {
  LatencyModel latency(model, layout, sim.machine, sim.routing);
  const auto step = [&](StepShape shape) {
    return latency.step(shape, 0, StagingMode::kAuto).total;
  };
  const auto prefill = [&](int tokens, double before) {
    return step({.sequences = 1,
                 .prefill_tokens = tokens,
                 .prefill_pairs = tokens * (before + tokens / 2.0),
                 .prefill_context = before + tokens,
                 .sampled = 1});
  };
  const auto decode = [&](int batch, double context) {
    return step({.sequences = batch,
                 .decode_requests = batch,
                 .decode_context = batch * context,
                 .sampled = batch});
  };
  PolicyConfig config;
  BoundaryPlanner::Config& planner = config.priced.planner;
  // Two chunk lengths and two depths give the three coefficients.
  const Micros small = prefill(512, 0), large = prefill(2048, 0), deep = prefill(2048, 16384);
  planner.prefill.c2 = (deep - large) / (2048.0 * 16384);
  planner.prefill.c1 =
      std::max(0.0, (large - small) / 1536 - planner.prefill.c2 * (2048 + 512) / 2);
  planner.prefill.c0 = std::max(0.0, small - 512 * planner.prefill.c1);
  planner.decode.per_request = (decode(8, 0) - decode(1, 0)) / 7;
  planner.decode.base = decode(1, 0) - planner.decode.per_request;
  planner.decode.per_context_token = (decode(1, 16384) - decode(1, 0)) / 16384;
  planner.up_bytes_per_us = sim.machine.link_up_gbps * 1e3;
  planner.down_bytes_per_us = sim.machine.link_down_gbps * 1e3;
  planner.copy_slowdown = sim.machine.copy_slowdown;
  planner.experts_per_token = model.experts_per_token;
  config.priced.map_us = sim.machine.handle_move;
  if (layout.tensor_parallel == 4) config.value_aware.decision_block_tokens = 272;
  return config;
}

ClosedLoopResult run_closed_loop(const ModelConfig& model, const MemoryLayout& layout,
                                 const std::vector<SessionScript>& sessions,
                                 const ClosedLoopOptions& options) {
  const PolicyTraits traits = policy_traits(options.policy);
  SchedulerConfig config = options.scheduler;
  config.limits.vocab_size = model.vocab_size;
  config.two_way_boundary = traits.two_way_boundary;
  if (!traits.host_tier) config.host_blocks = 0;
  if (!traits.moves_boundary) config.max_groups_out = layout.min_groups_out;

  VirtualClock clock;
  Load load(sessions, options.concurrency, model.vocab_size, 7);
  Meter meter;
  SchedulerListener listener;
  listener.on_decision = [&](const DecisionRecord& record) {
    ++meter.result.decisions[static_cast<size_t>(record.decision.kind)];
  };
  listener.on_finished = [&](const RequestStats& stats) {
    meter.turn(stats, load.first_turn(stats.id));
  };
  Scheduler scheduler(config, layout, make_policy(options.policy, options.policies, layout),
                      listener);
  SimExecutor executor(model, layout, options.sim, clock);

  const auto take_events = [&] {
    for (const RequestEvent& event : scheduler.take_events()) {
      if (event.kind == RequestEvent::Kind::kToken) {
        load.token(event.id, event.token);
      } else {
        load.finished(event.id, clock.now());
      }
    }
  };
  while (!load.done()) {
    while (load.next_due() <= clock.now()) {
      if (const auto refused = scheduler.add(load.take_due(), clock.now()))
        throw Error("{}", *refused);
    }
    StepPlan plan = scheduler.schedule(clock.now());
    take_events();
    const bool idle = plan.empty();
    if (!idle) {
      if (traits.whole_region_staging) plan.staging = StagingMode::kWholeRegion;
      executor.submit(std::move(plan));
    }
    if (executor.in_flight() == 2 || (idle && executor.in_flight() > 0)) {
      const StepResult result = executor.wait();
      meter.step(result, scheduler.stats().groups_out, layout.block_bytes);
      scheduler.update(result, clock.now());
      if (options.check_invariants) scheduler.check_invariants();
      take_events();
    } else if (idle && !load.done()) {
      const Micros until = std::min(load.next_due(), scheduler.next_wakeup());
      VAMP_CHECK(until < std::numeric_limits<double>::infinity(), "the loop is stuck");
      clock.sleep_until(until);
    }
  }
  return meter.finish(clock.now());
}

}  // namespace vamp
