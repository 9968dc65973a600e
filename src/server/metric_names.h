// The metrics by name, with help texts and buckets: those of vLLM as its dashboards expect them.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace vamp {

struct MetricInfo {
  const char* name;
  const char* type;  // "gauge", "counter", "histogram"
  const char* help;
};

std::span<const MetricInfo> metric_table();
// Throws InvariantError for a name that the table lacks.
std::string metric_help(const char* name);

// Upper bounds, in seconds or tokens.
extern const std::vector<double> kTtftBuckets, kTokenGapBuckets, kRequestBuckets, kIterationBuckets;
// 1, 2, 5, 10, 20, ... up to `most`.
std::vector<double> buckets_1_2_5(int most);

}  // namespace vamp
