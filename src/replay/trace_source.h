// Where traces come from: a file, a gzip file, a tar archive (gzip or not) or a folder of any of
// these.
#pragma once

#include <string>
#include <vector>

namespace vamp {

struct TraceDocument {
  std::string name;  // for messages
  std::string text;  // decompressed
};

// Documents of a folder or archive come in the order of their names; a README or LICENSE in it is
// left out. Throws Error naming the file on anything that cannot be read, and beyond `max_bytes` of
// text.
std::vector<TraceDocument> read_trace_documents(const std::string& path,
                                                size_t max_bytes = size_t{4} << 30);

}  // namespace vamp
