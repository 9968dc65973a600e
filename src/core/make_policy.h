// The policies by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/priced_policy.h"
#include "core/value_aware_policy.h"

namespace vamp {

struct PolicyConfig {
  ValueAwareConfig value_aware;
  PricedConfig priced;
};

// What `--policy` takes:
//   static           evict, then preempt by recompute
//   paper            the paper's policy with its constants; run it with a one-way boundary,
//   whole-region
//                    staging and no host tier
//   paper-measured   the same, prefill time and staging cost measured
//   priced           the default
//   priced-nohost    priced, without the host tier
//   priced-noexperts priced, without giving up experts
std::vector<std::string> policy_names();

// How an engine must be set up for a policy to be what its name says.
struct PolicyTraits {
  bool two_way_boundary = true;
  bool host_tier = true;
  bool whole_region_staging = false;
  bool moves_boundary = true;
};
PolicyTraits policy_traits(std::string_view name);

// `layout` must outlive the policy. Throws Error with the list of names for an unknown one.
std::unique_ptr<ReclaimPolicy> make_policy(std::string_view name, const PolicyConfig& config,
                                           const MemoryLayout& layout);

}  // namespace vamp
