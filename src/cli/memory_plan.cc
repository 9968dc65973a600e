#include "cli/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "model/checkpoint_tensors.h"

namespace vamp {
namespace {

MemoryLayoutOptions layout_options(const ModelConfig& model, const MemoryPlanOptions& options,
                                   double percent) {
  MemoryLayoutOptions layout;
  layout.page_bytes = options.page_bytes;
  layout.tensor_parallel = options.tensor_parallel;
  layout.device_bytes = options.device_bytes;
  layout.reserve_bytes = options.reserve_bytes;
  layout.block_tokens = options.block_tokens;
  layout.kv_dtype = model.dtype;
  layout.max_offload_percent = percent;
  layout.increment_groups = options.increment_groups;
  return layout;
}

bool fits(const ModelConfig& model, const MemoryPlanOptions& options, double percent) {
  try {
    make_memory_layout(model, layout_options(model, options, percent));
    return true;
  } catch (const Error&) {
    return false;
  }
}

RatioPlan ratio_plan(const ExpertGeometry& experts, double percent, int increment_groups) {
  const auto moving_layers = static_cast<size_t>(experts.moe_layers - 1);
  const auto bytes = [&](int groups_per_layer) {
    return static_cast<size_t>(groups_per_layer) * moving_layers * experts.group_bytes();
  };
  RatioPlan plan;
  plan.percent = percent;
  plan.groups_per_layer = experts.groups_for_percent(percent, true);
  plan.experts_per_layer =
      std::min(experts.experts, plan.groups_per_layer * experts.shards_per_group);
  plan.groups = plan.groups_per_layer * static_cast<int>(moving_layers);
  plan.increments = (plan.groups + increment_groups - 1) / increment_groups;
  plan.last_increment_groups =
      plan.groups == 0 ? 0 : plan.groups - (plan.increments - 1) * increment_groups;
  plan.gained_bytes = bytes(plan.groups_per_layer);
  plan.gained_bytes_unrounded = bytes(experts.groups_for_percent(percent, false));
  // Two banks; with a single moving layer only one is used.
  plan.bank_bytes = static_cast<size_t>(plan.groups_per_layer) *
                    std::min<size_t>(2, moving_layers) * experts.group_bytes();
  return plan;
}

std::string row(const char* name, const std::string& value, const std::string& note = "") {
  return fmt::format("  {:<30} {:>12}{}{}\n", name, value, note.empty() ? "" : "   ", note);
}

// The pool at the boundary's end, before the banks. What the weights lack comes off the gain.
std::string pool_cell(const MemoryPlan& plan, const RatioPlan& ratio) {
  if (!plan.kv_pool_bytes) return "";
  const size_t have = *plan.kv_pool_bytes + ratio.gained_bytes;
  const size_t lacking = plan.experts.group_bytes() * static_cast<size_t>(plan.missing_groups);
  return fmt::format(" {:>12}", have >= lacking ? format_bytes(have - lacking) : "too small");
}

std::string ratio_rows(const MemoryPlan& plan) {
  if (plan.ratios.empty()) return "";
  std::string text = fmt::format("\n  {:>7} {:>8} {:>8} {:>11} {:>12} {:>12} {:>12}{}\n", "ratio",
                                 "experts", "groups", "increments", "gain", "unrounded", "banks",
                                 plan.kv_pool_bytes ? "      KV pool" : "");
  for (const RatioPlan& ratio : plan.ratios) {
    text += fmt::format("  {:>7} {:>8} {:>8} {:>11} {:>12} {:>12} {:>12}",
                        fmt::format("VAMP-{:g}", ratio.percent), ratio.experts_per_layer,
                        ratio.groups_per_layer, ratio.increments, format_bytes(ratio.gained_bytes),
                        format_bytes(ratio.gained_bytes_unrounded), format_bytes(ratio.bank_bytes));
    text += pool_cell(plan, ratio);
    text += "\n";
  }
  return text +
         "  experts and groups a layer; the first MoE layer stays; gains are those of the paper, "
         "before the banks\n";
}

std::string pool_rows(const MemoryPlan& plan) {
  if (!plan.kv_pool_bytes) return "  give --gpu or --device-memory to see the KV pool\n";
  std::string text = row("budget", format_bytes(plan.options.device_bytes));
  text += row("reserve", format_bytes(plan.options.reserve_bytes),
              "runtime memory that config.json cannot tell");
  text += row("KV pool", format_bytes(*plan.kv_pool_bytes),
              fmt::format("{} tokens in {} blocks",
                          *plan.kv_pool_bytes / plan.block_bytes *
                              static_cast<size_t>(plan.options.block_tokens),
                          *plan.kv_pool_bytes / plan.block_bytes));
  if (plan.missing_groups > 0) {
    text += fmt::format(
        "  the weights exceed the budget by {} groups: it starts with experts given "
        "up, from VAMP-{} on\n",
        plan.missing_groups, *plan.least_percent);
  }
  return text;
}

}  // namespace

MemoryPlan make_memory_plan(const ModelConfig& model, const MemoryPlanOptions& options) {
  MemoryPlan plan;
  plan.options = options;
  plan.experts = make_expert_geometry(model, options.tensor_parallel, options.page_bytes);
  plan.dense_weight_bytes = dense_weight_bytes(model, options.tensor_parallel);
  plan.kv_bytes_per_token = kv_bytes_per_token(model, options.tensor_parallel, model.dtype);
  plan.block_bytes = plan.kv_bytes_per_token * static_cast<size_t>(options.block_tokens);
  plan.recurrent_state_bytes = recurrent_state_bytes(model, options.tensor_parallel);
  if (options.device_bytes > 0) {
    const MemoryLayout layout = make_memory_layout(model, layout_options(model, options, 100));
    plan.kv_pool_bytes = layout.base_pool_bytes;
    plan.missing_groups = layout.missing_groups;
    if (layout.min_groups_out > 0) {
      int percent = 1;
      while (!fits(model, options, percent)) ++percent;
      plan.least_percent = percent;
    }
  }
  for (const double percent : options.ratios) {
    if (!(percent >= 0 && percent <= 100)) {
      throw Error("--max-offload-ratio {}: expected 0 to 100 percent", percent);
    }
    plan.ratios.push_back(ratio_plan(plan.experts, percent, options.increment_groups));
  }
  return plan;
}

nlohmann::ordered_json plan_json(const MemoryPlan& plan) {
  const ExpertGeometry& experts = plan.experts;
  nlohmann::ordered_json json;
  json["tensor_parallel"] = plan.options.tensor_parallel;
  json["page_bytes"] = plan.options.page_bytes;
  json["moe_layers"] = experts.moe_layers;
  json["experts_per_layer"] = experts.experts;
  json["group_bytes"] = experts.group_bytes();
  json["shards_per_group"] = experts.shards_per_group;
  json["groups_per_layer"] = experts.groups_per_layer;
  json["increment_groups"] = plan.options.increment_groups;
  json["increment_bytes"] =
      experts.group_bytes() * static_cast<size_t>(plan.options.increment_groups);
  json["experts_bytes_per_gpu"] = experts.expert_bytes();
  json["dense_weights_bytes_per_gpu"] = plan.dense_weight_bytes;
  json["kv_bytes_per_token_per_gpu"] = plan.kv_bytes_per_token;
  json["block_tokens"] = plan.options.block_tokens;
  json["block_bytes_per_gpu"] = plan.block_bytes;
  json["recurrent_state_bytes_per_sequence_per_gpu"] = plan.recurrent_state_bytes;
  json["budget_bytes_per_gpu"] = nullptr;
  json["kv_pool_bytes_per_gpu"] = nullptr;
  if (plan.kv_pool_bytes) {
    json["budget_bytes_per_gpu"] = plan.options.device_bytes;
    json["reserve_bytes_per_gpu"] = plan.options.reserve_bytes;
    json["kv_pool_bytes_per_gpu"] = *plan.kv_pool_bytes;
    json["kv_blocks"] = *plan.kv_pool_bytes / plan.block_bytes;
    json["missing_groups"] = plan.missing_groups;
  }
  if (plan.least_percent) json["least_offload_percent"] = *plan.least_percent;
  json["ratios"] = nlohmann::ordered_json::array();
  for (const RatioPlan& ratio : plan.ratios) {
    json["ratios"].push_back({{"percent", ratio.percent},
                              {"experts_per_layer", ratio.experts_per_layer},
                              {"groups_per_layer", ratio.groups_per_layer},
                              {"groups", ratio.groups},
                              {"increments", ratio.increments},
                              {"last_increment_groups", ratio.last_increment_groups},
                              {"gained_bytes", ratio.gained_bytes},
                              {"gained_bytes_unrounded", ratio.gained_bytes_unrounded},
                              {"bank_bytes", ratio.bank_bytes}});
  }
  return json;
}

std::string plan_table(const MemoryPlan& plan) {
  const ExpertGeometry& experts = plan.experts;
  std::string text;
  text += row("experts", format_bytes(experts.expert_bytes()),
              fmt::format("{} layers of {}", experts.moe_layers, experts.experts));
  text += row("other weights", format_bytes(plan.dense_weight_bytes));
  text += row(
      "expert group", format_bytes(experts.group_bytes()),
      fmt::format("{} shard{} of {}", experts.shards_per_group,
                  experts.shards_per_group > 1 ? "s" : "", format_bytes(experts.shard_bytes())));
  text += row("groups a layer", std::to_string(experts.groups_per_layer));
  text +=
      row("increment of the boundary",
          format_bytes(experts.group_bytes() * static_cast<size_t>(plan.options.increment_groups)),
          fmt::format("{} groups", plan.options.increment_groups));
  text += row("KV a token", format_bytes(plan.kv_bytes_per_token));
  text += row("KV block", format_bytes(plan.block_bytes),
              fmt::format("{} tokens", plan.options.block_tokens));
  if (plan.recurrent_state_bytes > 0) {
    text += row("recurrent state a sequence", format_bytes(plan.recurrent_state_bytes));
  }
  text += pool_rows(plan);
  return text + ratio_rows(plan);
}

}  // namespace vamp
