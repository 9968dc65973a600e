// What the GPU benchmarks share: graph timing, random device data, a table line.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cuda/device_buffer.h"

namespace vamp::cuda {

// Median microseconds of one replay of `work` captured as a graph.
inline double graph_us(const std::function<void(cudaStream_t)>& work, int repeats = 21) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  work(stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < repeats + 3; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "running the graph");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 3) times.push_back(ms * 1e3f);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

// bf16 normal values of deviation `scale`, different for every (seed, index).
void fill_normal(void* bf16_data, size_t count, float scale, uint64_t seed);
void fill_normal_f32(float* data, size_t count, float scale, uint64_t seed);

}  // namespace vamp::cuda
