#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <cmath>
#include <map>

#include "server/metric_names.h"

namespace vamp {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Labels = prometheus::Labels;

// Increases a counter to a total that the engine keeps.
void raise_to(Counter& counter, double total) {
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

double seconds(Micros time) {
  return time / kSecond;
}

}  // namespace

struct Metrics::Impl {
  Impl(const MetricsOptions& options)
      : labels{{"model_name", options.model_name}, {"engine", "0"}},
        token_buckets(buckets_1_2_5(options.max_model_len)) {}

  Gauge& gauge(const char* name, Labels extra = {}) {
    return prometheus::BuildGauge()
        .Name(name)
        .Help(metric_help(name))
        .Register(registry)
        .Add(with(std::move(extra)));
  }
  Counter& counter(const char* name, Labels extra = {}) {
    return prometheus::BuildCounter()
        .Name(name)
        .Help(metric_help(name))
        .Register(registry)
        .Add(with(std::move(extra)));
  }
  Histogram& histogram(const char* name, const std::vector<double>& buckets) {
    return prometheus::BuildHistogram()
        .Name(name)
        .Help(metric_help(name))
        .Register(registry)
        .Add(labels, buckets);
  }
  Labels with(Labels extra) const {
    extra.insert(labels.begin(), labels.end());
    return extra;
  }

  prometheus::Registry registry;
  const Labels labels;
  const std::vector<double> token_buckets;
  std::atomic<int> running_now = 0;
  std::atomic<int64_t> held_tokens = 0;

  Gauge& running = gauge("vllm:num_requests_running");
  Gauge& waiting = gauge("vllm:num_requests_waiting");
  Gauge& kv_usage = gauge("vllm:kv_cache_usage_perc");
  Counter& queries = counter("vllm:prefix_cache_queries_total");
  Counter& hits = counter("vllm:prefix_cache_hits_total");
  Counter& host_queries = counter("vllm:external_prefix_cache_queries_total");
  Counter& host_hits = counter("vllm:external_prefix_cache_hits_total");
  Counter& preemptions = counter("vllm:num_preemptions_total");
  Counter& prompt_total = counter("vllm:prompt_tokens_total");
  Counter& generation_total = counter("vllm:generation_tokens_total");
  std::map<FinishReason, Counter*> success = {
      {FinishReason::kStop, &counter("vllm:request_success_total", {{"finished_reason", "stop"}})},
      {FinishReason::kLength,
       &counter("vllm:request_success_total", {{"finished_reason", "length"}})},
      {FinishReason::kCancelled,
       &counter("vllm:request_success_total", {{"finished_reason", "abort"}})},
      {FinishReason::kError,
       &counter("vllm:request_success_total", {{"finished_reason", "error"}})}};
  Histogram& ttft = histogram("vllm:time_to_first_token_seconds", kTtftBuckets);
  Histogram& token_gap = histogram("vllm:inter_token_latency_seconds", kTokenGapBuckets);
  Histogram& tpot = histogram("vllm:request_time_per_output_token_seconds", kTokenGapBuckets);
  Histogram& e2e = histogram("vllm:e2e_request_latency_seconds", kRequestBuckets);
  Histogram& queue_time = histogram("vllm:request_queue_time_seconds", kRequestBuckets);
  Histogram& inference_time = histogram("vllm:request_inference_time_seconds", kRequestBuckets);
  Histogram& prefill_time = histogram("vllm:request_prefill_time_seconds", kRequestBuckets);
  Histogram& decode_time = histogram("vllm:request_decode_time_seconds", kRequestBuckets);
  Histogram& prompt_tokens = histogram("vllm:request_prompt_tokens", token_buckets);
  Histogram& generation_tokens = histogram("vllm:request_generation_tokens", token_buckets);
  Histogram& iteration_tokens = histogram("vllm:iteration_tokens_total", kIterationBuckets);

  std::map<std::string, Gauge*> owners;
  Gauge& groups_out = gauge("vamp:expert_groups_offloaded");
  Gauge& experts_out = gauge("vamp:experts_offloaded");
  Gauge& host_usage = gauge("vamp:host_tier_usage_perc");
  Gauge& activated = gauge("vamp:activated_experts_per_layer");
  Counter& boundary_moves = counter("vamp:boundary_moves_total");
  Counter& boundary_seconds = counter("vamp:boundary_move_seconds_total");
  Counter& failed_steps = counter("vamp:failed_steps_total");
  Counter& staged_bytes = counter("vamp:staged_bytes_total");
  Counter& staging_stall = counter("vamp:staging_stall_seconds_total");
  Counter& demoted_bytes = counter("vamp:demoted_bytes_total");
  Counter& promoted_bytes = counter("vamp:promoted_bytes_total");
  Counter& host_tokens = counter("vamp:host_tier_hit_tokens_total");
  std::vector<Counter*> decisions, decision_cost;
  MemoryLayout layout;
};

Metrics::Metrics() = default;
Metrics::~Metrics() = default;

void Metrics::start(const MetricsOptions& options, const MemoryLayout& layout,
                    const SchedulerConfig& scheduler, const std::string& policy) {
  auto impl = std::make_unique<Impl>(options);
  impl->layout = layout;
  for (int i = 0; i < kNumActionKinds; ++i) {
    const Labels action = {{"action", action_name(static_cast<ActionKind>(i))}};
    impl->decisions.push_back(&impl->counter("vamp:decisions_total", action));
    impl->decision_cost.push_back(&impl->counter("vamp:decision_cost_seconds_total", action));
  }
  for (const char* owner : {"weights", "experts", "staging", "kv", "reserve"})
    impl->owners[owner] = &impl->gauge("vamp:memory_bytes", {{"owner", owner}});
  impl->gauge("vllm:cache_config_info",
              {{"block_size", std::to_string(layout.block_tokens)},
               {"num_gpu_blocks", std::to_string(layout.base_blocks())},
               {"num_cpu_blocks", std::to_string(scheduler.host_blocks)},
               {"enable_prefix_caching", scheduler.enable_prefix_caching ? "True" : "False"},
               {"max_groups_out", std::to_string(layout.max_groups_out())},
               {"policy", policy}})
      .Set(1);
  StepStats none;
  none.scheduler.groups_out = layout.min_groups_out;
  none.bank_groups = layout.bank_groups(layout.min_groups_out);
  impl_ = std::move(impl);
  started_ = true;
  observe_step(none);
}

void Metrics::observe_step(const StepStats& step) {
  if (!started_) return;
  Impl& m = *impl_;
  const SchedulerStats& s = step.scheduler;
  const MemoryLayout& layout = m.layout;
  m.running_now = s.running;
  m.held_tokens = int64_t{s.referenced_blocks} * layout.block_tokens;
  m.kv_usage.Set(s.total_blocks > 0 ? double(s.referenced_blocks) / s.total_blocks : 0);
  m.host_usage.Set(s.host_total_blocks > 0 ? double(s.host_used_blocks) / s.host_total_blocks : 0);
  raise_to(m.queries, double(s.queried_tokens));
  raise_to(m.hits, double(s.hit_tokens));
  raise_to(m.host_queries, double(s.queried_tokens - s.hit_tokens));
  raise_to(m.host_hits, double(s.host_hit_tokens));
  raise_to(m.host_tokens, double(s.host_hit_tokens));
  raise_to(m.preemptions, double(s.preemptions));
  raise_to(m.boundary_moves, double(s.boundary_moves));
  raise_to(m.failed_steps, double(s.failed_steps));
  m.boundary_seconds.Increment(seconds(step.boundary_us));
  m.groups_out.Set(s.groups_out);
  m.experts_out.Set(double(s.groups_out) * layout.shards_per_group);
  m.staged_bytes.Increment(double(step.staging.staged_bytes));
  m.staging_stall.Increment(seconds(step.staging.stall));
  m.demoted_bytes.Increment(double(step.demoted_bytes));
  m.promoted_bytes.Increment(double(step.promoted_bytes));
  if (step.experts_per_layer > 0) m.activated.Set(step.experts_per_layer);
  const double group = double(layout.group_bytes());
  const int resident = layout.total_groups() - s.groups_out;
  m.owners["weights"]->Set(double(layout.dense_weight_bytes));
  m.owners["experts"]->Set(resident * group);
  m.owners["staging"]->Set(step.bank_groups * group);
  m.owners["kv"]->Set(double(layout.base_pool_bytes) + layout.pool_slots(s.groups_out) * group);
  m.owners["reserve"]->Set(double(layout.reserve_bytes));
  if (step.prefill_tokens + step.decode_tokens > 0)
    m.iteration_tokens.Observe(step.prefill_tokens + step.decode_tokens);
}

void Metrics::observe_request(const RequestStats& stats, FinishReason reason) {
  if (!started_) return;
  Impl& m = *impl_;
  const auto counted = m.success.find(reason);
  if (counted != m.success.end()) counted->second->Increment();
  if (stats.first_token <= 0 || stats.output_tokens <= 0) return;
  m.prompt_total.Increment(stats.prompt_tokens);
  m.generation_total.Increment(stats.output_tokens);
  m.ttft.Observe(seconds(stats.first_token - stats.arrival));
  m.e2e.Observe(seconds(stats.finished - stats.arrival));
  m.queue_time.Observe(seconds(stats.first_scheduled - stats.arrival));
  m.inference_time.Observe(seconds(stats.finished - stats.first_scheduled));
  m.prefill_time.Observe(seconds(stats.first_token - stats.first_scheduled));
  m.decode_time.Observe(seconds(stats.finished - stats.first_token));
  m.prompt_tokens.Observe(stats.prompt_tokens);
  m.generation_tokens.Observe(stats.output_tokens);
  if (stats.output_tokens > 1)
    m.tpot.Observe(seconds(stats.finished - stats.first_token) / (stats.output_tokens - 1));
}

void Metrics::observe_token_gap(Micros time) {
  if (started_) impl_->token_gap.Observe(seconds(time));
}

void Metrics::observe_decision(const DecisionRecord& record) {
  if (!started_) return;
  const auto kind = static_cast<size_t>(record.decision.kind);
  impl_->decisions[kind]->Increment();
  for (const ActionCost& action : record.decision.costs) {
    if (action.kind == record.decision.kind && std::isfinite(action.cost) && action.cost > 0)
      impl_->decision_cost[kind]->Increment(seconds(action.cost));
  }
}

Metrics::Load Metrics::load() const {
  if (!started_) return {};
  return {impl_->running_now, impl_->held_tokens};
}

std::string Metrics::text(int requests) {
  if (!started_) return {};
  const int running = std::min<int>(impl_->running_now, requests);
  impl_->running.Set(running);
  impl_->waiting.Set(requests - running);
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace vamp
