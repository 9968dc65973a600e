#include "base/error.h"

namespace vamp {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw InvariantError(fmt::format("invariant broken: {} ({}:{}){}{}", condition, file, line,
                                   message.empty() ? "" : ": ", message));
}

}  // namespace vamp
