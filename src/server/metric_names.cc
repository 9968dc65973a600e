#include "server/metric_names.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "server/metrics.h"

namespace vamp {
namespace {

constexpr MetricInfo kMetrics[] = {
    {"vllm:num_requests_running", "gauge", "Requests in the running batch."},
    {"vllm:num_requests_waiting", "gauge", "Requests waiting to be scheduled."},
    {"vllm:kv_cache_usage_perc", "gauge", "Share of the KV blocks in use by requests; 1 is all."},
    {"vllm:cache_config_info", "gauge", "The cache's configuration, in labels; always 1."},
    {"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache."},
    {"vllm:prefix_cache_hits_total", "counter", "Of them, found on the device."},
    {"vllm:external_prefix_cache_queries_total", "counter",
     "Prompt tokens looked up in the host tier."},
    {"vllm:external_prefix_cache_hits_total", "counter", "Of them, found in the host tier."},
    {"vllm:num_preemptions_total", "counter", "Requests put back into the queue."},
    {"vllm:prompt_tokens_total", "counter", "Prompt tokens of finished requests."},
    {"vllm:generation_tokens_total", "counter", "Output tokens of finished requests."},
    {"vllm:request_success_total", "counter", "Finished requests by finished_reason."},
    {"vllm:time_to_first_token_seconds", "histogram", "Arrival to first token."},
    {"vllm:inter_token_latency_seconds", "histogram", "From one token of a request to the next."},
    {"vllm:request_time_per_output_token_seconds", "histogram",
     "Mean time per output token of a request, without the first."},
    {"vllm:e2e_request_latency_seconds", "histogram", "Arrival to last token."},
    {"vllm:request_queue_time_seconds", "histogram", "Arrival to first scheduling."},
    {"vllm:request_inference_time_seconds", "histogram", "First scheduling to last token."},
    {"vllm:request_prefill_time_seconds", "histogram", "First scheduling to first token."},
    {"vllm:request_decode_time_seconds", "histogram", "First to last token."},
    {"vllm:request_prompt_tokens", "histogram", "Prompt tokens of a request."},
    {"vllm:request_generation_tokens", "histogram", "Output tokens of a request."},
    {"vllm:iteration_tokens_total", "histogram", "Tokens computed in a step."},
    {"vamp:memory_bytes", "gauge",
     "Device memory by owner; kv and experts move with the boundary."},
    {"vamp:expert_groups_offloaded", "gauge", "Expert groups given up: where the boundary is."},
    {"vamp:experts_offloaded", "gauge", "Experts given up, over all layers."},
    {"vamp:boundary_moves_total", "counter", "Moves of the boundary."},
    {"vamp:boundary_move_seconds_total", "counter", "Time that moves of the boundary took."},
    {"vamp:decisions_total", "counter", "Decisions of the memory policy by action."},
    {"vamp:decision_cost_seconds_total", "counter",
     "What the policy expected its decisions to cost, by action."},
    {"vamp:staged_bytes_total", "counter", "Expert weights copied in from the host."},
    {"vamp:staging_stall_seconds_total", "counter", "Time that steps waited for those copies."},
    {"vamp:activated_experts_per_layer", "gauge", "Distinct experts chosen in the last step."},
    {"vamp:host_tier_usage_perc", "gauge", "Share of the host tier in use; 1 is all."},
    {"vamp:host_tier_hit_tokens_total", "counter",
     "Prompt tokens brought back from the host tier."},
    {"vamp:demoted_bytes_total", "counter", "KV copied to the host tier."},
    {"vamp:promoted_bytes_total", "counter", "KV copied back from the host tier."},
    {"vamp:failed_steps_total", "counter", "Steps that were lost and done again."},
};

}  // namespace

std::span<const MetricInfo> metric_table() {
  return kMetrics;
}

std::string metric_help(const char* name) {
  for (const MetricInfo& info : kMetrics) {
    if (std::string_view(info.name) == name) return info.help;
  }
  VAMP_CHECK(false, "metric {} is not in the table", name);
  return {};
}

const std::vector<double> kTtftBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kTokenGapBuckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                              .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kIterationBuckets = {1,   8,    16,   32,   64,   128,  256,
                                               512, 1024, 2048, 4096, 8192, 16384};

std::vector<double> buckets_1_2_5(int most) {
  std::vector<double> buckets;
  for (double power = 1; power <= most; power *= 10) {
    for (const int step : {1, 2, 5}) {
      if (step * power <= most) buckets.push_back(step * power);
    }
  }
  return buckets;
}

std::string Metrics::table() {
  std::string text = "| metric | type | what |\n|---|---|---|\n";
  for (const MetricInfo& info : kMetrics)
    text += fmt::format("| `{}` | {} | {} |\n", info.name, info.type, info.help);
  return text;
}

}  // namespace vamp
