// Which requests may enter at all: everything that can be told from the request and the model's
// vocabulary alone. What also depends on memory and the queue is Scheduler::add()'s.
#pragma once

#include <optional>
#include <string>

#include "core/request.h"

namespace vamp {

struct RequestLimits {
  int vocab_size = 0;    // token ids are 0 ... vocab_size - 1; 0: no model, any id >= 0 will do
  int max_logprobs = 0;  // most alternatives that a request may ask for; 0: vocab_size
};

// Why the request is refused, in one line that names the field, the value and what is allowed;
// nothing if it is well-formed. O(prompt).
std::optional<std::string> validate_request(const RequestInput& request,
                                            const RequestLimits& limits);

}  // namespace vamp
