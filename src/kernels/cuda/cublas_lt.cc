#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include "base/error.h"

namespace vamp::cuda {
namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";

CublasLt load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    throw Error(
        "{} could not be loaded ({}): install the CUDA 13 toolkit's cuBLAS, or name its folder in "
        "LD_LIBRARY_PATH",
        kLibrary, dlerror());
  }
  CublasLt lt;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) throw Error("{} has no {}: it is not cuBLAS 13's", kLibrary, name);
  };
#define VAMP_CUBLAS_LT(name) find(lt.name, "cublasLt" #name);
  VAMP_CUBLAS_LT_FUNCTIONS(VAMP_CUBLAS_LT)
#undef VAMP_CUBLAS_LT
  return lt;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt lt = load();
  return lt;
}

}  // namespace vamp::cuda
