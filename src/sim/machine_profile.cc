#include "sim/machine_profile.h"

#include <algorithm>

#include "model/gpu_presets.h"

namespace vamp {
namespace {

// What of a data sheet's figures is reached: calibrated on the H200.
constexpr double kMemoryShare = 0.875;  // of the bandwidth: 4,200 GB/s
constexpr double kDenseShare = 0.385;   // of the arithmetic, products of a whole model: 380 TFLOP/s
constexpr double kAttentionShare = 0.61;  // prefill attention: 600 TFLOP/s
constexpr double kGatherShare = 0.93;     // of the copy engine's rate, by a kernel
constexpr double kAllReduceShare = 0.75;  // of NVLink's copy rate
constexpr double kSlowestNvlink = 100;    // GB/s; below, ranks talk over PCIe through the host

MachineProfile from_gpu(const GpuPreset& gpu) {
  MachineProfile machine;
  machine.name = gpu.name;
  machine.memory_gbps = kMemoryShare * gpu.memory_gbps;
  machine.dense_tflops = kDenseShare * gpu.bf16_tflops;
  machine.attention_tflops = kAttentionShare * gpu.bf16_tflops;
  machine.link_up_gbps = gpu.host_to_device_gbps;
  machine.link_down_gbps = gpu.device_to_host_gbps;
  machine.gather_gbps = kGatherShare * gpu.host_to_device_gbps;
  const bool nvlink = gpu.gpu_to_gpu_gbps >= kSlowestNvlink;
  // Over PCIe the preset's rate is that of the all-reduce itself: the paper's table asks for 46 us
  // a token of Qwen3-Next's prefill, of which 28 are the 393 KB that its 96 all-reduces move.
  machine.all_reduce_gbps = nvlink ? kAllReduceShare * gpu.gpu_to_gpu_gbps : gpu.gpu_to_gpu_gbps;
  machine.all_reduce_latency = nvlink ? 12 : 40;
  return machine;
}

MachineProfile cpu() {
  MachineProfile machine;
  machine.name = "cpu";
  machine.memory_gbps = 22;
  machine.dense_tflops = 0.14;
  machine.attention_tflops = 0.04;
  machine.link_up_gbps = machine.link_down_gbps = machine.gather_gbps = 6;
  machine.layer_overhead = 10;
  machine.step_overhead = 500;
  machine.handle_move = 20;
  machine.copy_slowdown = 0.2;
  return machine;
}

}  // namespace

MachineProfile machine_profile(std::string_view name) {
  return name == "cpu" ? cpu() : from_gpu(gpu_preset(name));
}

}  // namespace vamp
