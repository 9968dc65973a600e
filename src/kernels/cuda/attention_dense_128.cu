#include "kernels/cuda/attention_long.cuh"

namespace vamp::cuda {

cudaError_t dense_attention_128(const LongAttentionArgs& args, cudaStream_t stream) {
  return dense_attention<128>(args, stream);
}

}  // namespace vamp::cuda
