// tool_choice "required" or a named function, as constraints on the output.
#pragma once

#include "server/api/constraint.h"

namespace vamp {

// `tools` in OpenAI's form. The output is the arguments of the tool called `name`. Throws ApiError
// when there is none, or when its parameters are no schema that can be enforced.
RequestedConstraint named_tool_constraint(const Json& tools, const std::string& name);

// The output is a list of {"name": …, "parameters": …}, one call or, if `parallel`, more: vLLM's
// form. Throws ApiError likewise.
RequestedConstraint required_tools_constraint(const Json& tools, bool parallel,
                                              const GrammarLimits& limits);

}  // namespace vamp
