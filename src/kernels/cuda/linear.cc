#include "kernels/cuda/linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <tuple>

#include "kernels/cuda/add_bias.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/linear_skinny.h"
#include "kernels/cuda/linear_split.h"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS itself takes on Hopper
constexpr int kSmallestBucket = 32;
constexpr int kProposals = 8, kTimings = 5;

void check_lt(cublasStatus_t status, const char* doing) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    throw Error("cuBLASLt: {} failed: {}", doing, cublas_lt().GetStatusString(status));
}

int bucket_of(int rows) {
  return std::max(kSmallestBucket, static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows))));
}

// cuBLASLt's descriptions of one product. Its matrices are column-major: outᵀ [N, rows] = W [K, N]ᵀ
// xᵀ [K, rows].
class Product {
 public:
  Product(const LinearPart& part, int64_t x_stride, int rows) {
    const CublasLt& lt = cublas_lt();
    check_lt(lt.MatmulDescCreate(&matmul_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    const cublasOperation_t transpose = CUBLAS_OP_T;
    check_lt(lt.MatmulDescSetAttribute(matmul_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                       sizeof(transpose)),
             "describing a product");
    const auto N = static_cast<uint64_t>(part.weight.rows),
               K = static_cast<uint64_t>(part.weight.cols);
    const auto T = static_cast<uint64_t>(rows);
    layout(&w_, CUDA_R_16BF, K, N, part.weight.cols);
    layout(&x_, CUDA_R_16BF, K, T, x_stride);
    layout(&out_, part.kind == LinearPart::Out::kFloat ? CUDA_R_32F : CUDA_R_16BF, N, T,
           part.out_stride);
  }
  ~Product() {
    const CublasLt& lt = cublas_lt();
    for (auto* l : {w_, x_, out_}) {
      if (l) lt.MatrixLayoutDestroy(l);
    }
    if (matmul_) lt.MatmulDescDestroy(matmul_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  // Best first; empty when cuBLASLt knows none.
  std::vector<cublasLtMatmulAlgo_t> propose(cublasLtHandle_t handle, int most) const {
    const CublasLt& lt = cublas_lt();
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(lt.MatmulPreferenceCreate(&preference), "asking for an algorithm");
    lt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                    &kWorkspaceBytes, sizeof(kWorkspaceBytes));
    // Pieces of K are joined in f32, never rounded to bf16 between.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    lt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                    &reductions, sizeof(reductions));
    std::array<cublasLtMatmulHeuristicResult_t, kProposals> results{};
    int found = 0;
    lt.MatmulAlgoGetHeuristic(handle, matmul_, w_, x_, out_, out_, preference,
                              std::min(most, kProposals), results.data(), &found);
    lt.MatmulPreferenceDestroy(preference);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) {
      if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
        algorithms.push_back(results[static_cast<size_t>(i)].algo);
    }
    return algorithms;
  }

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, const bf16* x,
                     const LinearPart& part, void* workspace, cudaStream_t stream) const {
    const float one = 1.0f, old = part.kind == LinearPart::Out::kResidual ? 1.0f : 0.0f;
    return cublas_lt().Matmul(handle, matmul_, &one, part.weight.data, w_, x, x_, &old, part.out,
                              out_, part.out, out_, &algorithm, workspace, kWorkspaceBytes, stream);
  }

 private:
  static void layout(cublasLtMatrixLayout_t* out, cudaDataType type, uint64_t rows, uint64_t cols,
                     int64_t stride) {
    check_lt(cublas_lt().MatrixLayoutCreate(out, type, rows, cols, stride), "describing a matrix");
  }
  cublasLtMatmulDesc_t matmul_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
};

// linear_skinny takes dense rows and no f32 bias; the tokens of 9 and more rows of a long K do not
// fit its registers.
bool fits_skinny(const LinearPart& part, int64_t x_stride, int rows) {
  return rows <= (part.weight.cols <= 2048 ? kSkinnyMaxRows : kSkinnyMaxRows / 2) &&
         x_stride == part.weight.cols && part.out_stride == part.weight.rows && !part.bias;
}
// For matrices whose tiles are too few for cuBLASLt to keep the multiprocessors busy: of 5,120
// weight rows it is the faster one at 64 rows (8.0 us against 8.9), of 2,048 from 65 rows on, but
// from 129 on it loses more than that by waiting for the kernel in front.
bool fits_split(const LinearPart& part, int64_t x_stride, int rows) {
  const int most = rows <= 64 ? 4096 : rows <= 128 ? 1024 : 2048;  // weight rows
  return part.weight.rows <= most && x_stride == part.weight.cols && part.weight.rows % 8 == 0 &&
         part.out_stride % 4 == 0 && linear_split_takes(part, rows);
}

void run_skinny(const bf16* x, int rows, const LinearPart& part, cudaStream_t stream) {
  const auto* w = static_cast<const bf16*>(part.weight.data);
  const int N = part.weight.rows, K = part.weight.cols;
  if (part.kind == LinearPart::Out::kFloat) {
    linear_skinny_f32(x, w, static_cast<float*>(part.out), rows, N, K, stream);
  } else {
    linear_skinny(x, w, nullptr, static_cast<bf16*>(part.out), rows, N, K,
                  part.kind == LinearPart::Out::kResidual, stream);
  }
}

float time_us(auto&& work, cudaEvent_t begin, cudaEvent_t end) {
  float best = 1e30f;
  for (int i = 0; i < kTimings; ++i) {
    check(cudaEventRecord(begin, nullptr), "timing a product");
    work();
    check(cudaEventRecord(end, nullptr), "timing a product");
    check(cudaEventSynchronize(end), "timing a product");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "timing a product");
    best = std::min(best, ms * 1e3f);
  }
  return best;
}

}  // namespace

struct Linear::Impl {
  using Key = std::tuple<int, int, int, int>;  // N, K, kind of output, bucket

  static Key key(const LinearPart& part, int bucket) {
    return {part.weight.rows, part.weight.cols, static_cast<int>(part.kind), bucket};
  }

  void run(const bf16* x, int64_t x_stride, int rows, const LinearPart& part, cudaStream_t stream) {
    const int bucket = bucket_of(rows);
    const Product product(part, x_stride, rows);
    auto it = algorithms.find(key(part, bucket));
    if (it == algorithms.end()) {
      const auto proposals = Product(part, x_stride, bucket).propose(handle, 1);
      VAMP_CHECK(!proposals.empty(), "cuBLASLt has no algorithm for {} x {} of {} rows",
                 part.weight.rows, part.weight.cols, rows);
      it = algorithms.emplace(key(part, bucket), proposals.front()).first;
    }
    cublasStatus_t status = product.run(handle, it->second, x, part, workspace.get(), stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
      // The bucket's algorithm does not take these very rows or strides.
      const auto proposals = product.propose(handle, 1);
      VAMP_CHECK(!proposals.empty(), "cuBLASLt has no algorithm for {} x {} of {} rows",
                 part.weight.rows, part.weight.cols, rows);
      status = product.run(handle, proposals.front(), x, part, workspace.get(), stream);
    }
    check_lt(status, "a product");
  }

  cublasLtHandle_t handle = nullptr;
  DeviceBuffer<char> workspace{kWorkspaceBytes};
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;
};

Linear::Linear() : impl_(new Impl) {
  check_lt(cublas_lt().Create(&impl_->handle), "starting");
}
Linear::~Linear() {
  cublas_lt().Destroy(impl_->handle);
}

void Linear::run(const bf16* x, int64_t x_stride, int rows, std::span<const LinearPart> parts,
                 cudaStream_t stream) {
  if (rows == 0) return;
  for (const LinearPart& part : parts) {
    VAMP_CHECK(part.weight.dtype == DType::kBf16 && part.weight.cols % 8 == 0 && x_stride % 8 == 0,
               "linear: {} x {}, stride {}", part.weight.rows, part.weight.cols, x_stride);
    if (fits_skinny(part, x_stride, rows)) {
      run_skinny(x, rows, part, stream);
    } else if (fits_split(part, x_stride, rows)) {
      linear_split(x, rows, part, stream);
    } else {
      impl_->run(x, x_stride, rows, part, stream);
      if (part.bias) add_bias(part, rows, stream);
    }
  }
}

void Linear::tune(const bf16* x, int64_t x_stride, int max_rows,
                  std::span<const LinearPart> parts) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  for (const LinearPart& part : parts) {
    for (int bucket = kSmallestBucket; bucket / 2 < max_rows; bucket *= 2) {
      const Product product(part, x_stride, std::min(bucket, max_rows));
      float best = 1e30f;
      for (const cublasLtMatmulAlgo_t& algorithm : product.propose(impl_->handle, kProposals)) {
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        const float us = time_us(
            [&] {
              status =
                  product.run(impl_->handle, algorithm, x, part, impl_->workspace.get(), nullptr);
            },
            begin, end);
        if (status != CUBLAS_STATUS_SUCCESS || us >= best) continue;
        best = us;
        impl_->algorithms.insert_or_assign(Impl::key(part, bucket), algorithm);
      }
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

}  // namespace vamp::cuda
