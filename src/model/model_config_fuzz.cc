// Any text as config.json: refused with an Error, or a config on which all geometry can be
// computed.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "model/checkpoint_tensors.h"
#include "model/memory_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vamp;
  try {
    const ModelConfig model =
        parse_model_config({reinterpret_cast<const char*>(data), size}, "config.json");
    for (const int ranks : {1, 2}) {
      MemoryLayoutOptions options;
      options.tensor_parallel = ranks;
      options.device_bytes = size_t{1} << 40;
      options.max_offload_percent = 15;
      // Large models only cost time here: a group of each layer is listed.
      if (int64_t{model.num_layers()} * model.num_experts > 100'000) break;
      const MemoryLayout layout = make_memory_layout(model, options);
      VAMP_CHECK(layout.pool_slots(layout.max_groups_out()) >= 0);
    }
  } catch (const Error&) {
  }
  return 0;
}
