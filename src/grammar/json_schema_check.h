// JSON schemas at the door: what the grammar compiler would silently ignore is refused here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace vamp {

struct JsonSchemaLimits {
  int depth = 64;
  size_t nodes = 10000;        // objects, arrays and values of the schema together
  int max_repetition = 10000;  // minLength, maxLength, minItems, maxItems, minProperties, {m,n}
};

// Throws Error naming the keyword and its place (a JSON pointer) for what cannot be enforced: not,
// if/then/else, dependentRequired, dependentSchemas, uniqueItems, contains, several allOf, a $ref
// that leaves the schema, multipleOf on numbers that need not be whole; and for a schema that is
// too large or too deep.
void check_json_schema(const nlohmann::json& schema, const JsonSchemaLimits& limits = {});

// Throws Error when a bound in braces, {n} or {m,n}, of a pattern or grammar is above the limit:
// the compiled grammar grows with it.
void check_regex_repetition(std::string_view pattern, int max_repetition);

}  // namespace vamp
