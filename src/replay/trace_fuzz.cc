// Every trace reader: the first byte picks the format (or detection), the rest is the file.
#include <cstdint>

#include "base/error.h"
#include "replay/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  vamp::TraceReadOptions options;
  if (data[0] % 5 != 4) options.format = static_cast<vamp::TraceFormat>(data[0] % 5);
  options.chat = (data[0] & 8) != 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    vamp::Trace trace = vamp::parse_trace({{"fuzz", text}}, options);
    vamp::select_sessions(trace, {.max_sessions = 3, .max_turns = 2});
    if (trace.block_tokens > 0) vamp::scale_tokens(trace, 0.5);
  } catch (const vamp::Error&) {
  }
  return 0;
}
