// What a simulated machine can do: the few figures that the latency model needs.
#pragma once

#include <string>
#include <string_view>

#include "base/units.h"

namespace vamp {

// Rates as reached in practice, not as printed on the box: they hold what kernels lose. 1 GB/s =
// 1e9 bytes a second.
struct MachineProfile {
  std::string name;
  double memory_gbps = 4200;      // device memory, reading weights and KV
  double dense_tflops = 380;      // matrix products, experts included
  double attention_tflops = 600;  // prefill attention
  double link_up_gbps = 55;       // host to device, copy engine
  double link_down_gbps = 55;
  double gather_gbps = 51;  // host to device, by a kernel that reads host memory
  // Of the products that run beside it: each slows the other. As measured with the experts' two
  // products in two launches.
  double gather_hidden = 0.35;
  Micros layer_overhead = 50;      // launches and gaps of one layer
  Micros step_overhead = 300;      // of one step: plan, sampling, result
  Micros handle_move = 74;         // taking one handle from one owner to the other
  double copy_slowdown = 0.06;     // relative, of a step while KV copies run
  Micros all_reduce_latency = 12;  // between the ranks; two a layer
  double all_reduce_gbps = 280;    // bytes of the reduced tensor over time
};

// "cpu" (one thread of a Zen 4 core; host copies are memcpy), or a GPU by its preset's name: rates
// from the data sheet by the shares that the H200 reaches (vLLM's decode and prefill tables on
// Qwen3-30B-A3B; links and handles our own). Throws Error with the list of GPUs for another name.
MachineProfile machine_profile(std::string_view name);

}  // namespace vamp
