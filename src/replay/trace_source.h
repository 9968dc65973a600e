// Where traces come from: a file, a gzip file, a tar archive (gzip or not) or a folder of any of
// these.
#pragma once

#include <string>
#include <vector>

#include "base/units.h"

namespace vamp {

inline constexpr size_t kMaxTraceBytes = kGiB;

struct TraceDocument {
  std::string name;  // for messages
  std::string text;  // decompressed
};

// Documents of a folder or archive come in the order of their names; a README or LICENSE in it is
// left out. Throws Error naming the file on anything that cannot be read or is neither file, pipe
// nor folder, and beyond `max_bytes` of text in all.
std::vector<TraceDocument> read_trace_documents(const std::string& path,
                                                size_t max_bytes = kMaxTraceBytes);

}  // namespace vamp
