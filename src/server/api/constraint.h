// What a request says of its output's form, by whichever field: read, compiled, and set.
#pragma once

#include <optional>
#include <string>

#include "grammar/output_constraint.h"
#include "server/api/fields.h"
#include "server/generation.h"
#include "server/service.h"

namespace vamp {

struct RequestedConstraint {
  OutputConstraint constraint;
  std::string field;        // that asks for it, for errors
  bool any_output = false;  // of answers and tool calls alike: structured_outputs and guided_*
};

// response_format and vLLM's structured_outputs and guided_*. Throws ApiError for what is malformed
// or not supported, and for two constraints at once.
std::optional<RequestedConstraint> read_constraint(const Fields& body);

// A format whose schema stands beside its type, as in OpenAI's responses and Anthropic's messages;
// `name` is its own in errors. Nothing for type text.
std::optional<RequestedConstraint> read_flat_format(const Json& format, const std::string& name);

// Compiles the constraint into the request, to hold behind its reasoning. On a text thread, since
// it may take seconds. Throws ApiError.
void apply_constraint(Service& service, const RequestedConstraint& asked, GenerationRequest& out);

}  // namespace vamp
