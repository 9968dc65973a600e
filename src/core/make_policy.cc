#include "core/make_policy.h"

#include <fmt/format.h>

#include "base/error.h"
#include "core/static_policy.h"

namespace vamp {

const char* action_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kDrop:
      return "drop";
    case ActionKind::kDemote:
      return "demote";
    case ActionKind::kGiveUpExperts:
      return "give-up-experts";
    case ActionKind::kGiveUpAndDrop:
      return "give-up-and-drop";
    case ActionKind::kPreemptRecompute:
      return "preempt-recompute";
    case ActionKind::kPreemptSwap:
      return "preempt-swap";
    case ActionKind::kWait:
      return "wait";
  }
  return "unknown";
}

std::vector<std::string> policy_names() {
  return {"static", "paper", "paper-measured", "priced", "priced-nohost", "priced-noexperts"};
}

namespace {
void check_name(std::string_view name) {
  for (const std::string& known : policy_names()) {
    if (known == name) return;
  }
  std::string list;
  for (const std::string& known : policy_names()) list += (list.empty() ? "" : ", ") + known;
  throw Error(fmt::format("unknown policy '{}': use one of {}", name, list));
}
}  // namespace

PolicyTraits policy_traits(std::string_view name) {
  check_name(name);
  if (name == "static")
    return {.two_way_boundary = true, .host_tier = false, .moves_boundary = false};
  if (name.starts_with("paper")) {
    return {.two_way_boundary = false, .host_tier = false, .whole_region_staging = true};
  }
  if (name == "priced-nohost") return {.host_tier = false};
  if (name == "priced-noexperts") return {.moves_boundary = false};
  return {};
}

std::unique_ptr<ReclaimPolicy> make_policy(std::string_view name, const PolicyConfig& config,
                                           const MemoryLayout& layout) {
  check_name(name);
  if (name == "static") return std::make_unique<StaticPolicy>();
  if (name.starts_with("paper")) {
    ValueAwareConfig paper = config.value_aware;
    paper.measured = name == "paper-measured";
    return std::make_unique<ValueAwarePolicy>(paper);
  }
  PricedConfig priced = config.priced;
  if (name == "priced-nohost") {
    priced.host_tier = false;
    return std::make_unique<PricedPolicy>(layout, priced, "priced-nohost");
  }
  if (name == "priced-noexperts") {
    priced.experts = false;
    return std::make_unique<PricedPolicy>(layout, priced, "priced-noexperts");
  }
  return std::make_unique<PricedPolicy>(layout, priced);
}

}  // namespace vamp
