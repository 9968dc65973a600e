// What a request may ask of its output's form, in the server's words.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace vamp {

struct JsonObjectConstraint {};  // response_format json_object: any JSON object
struct JsonSchemaConstraint {
  std::string schema;  // JSON text
};
struct RegexConstraint {
  std::string pattern;  // the whole output matches; ECMAScript's syntax, no look-around
};
struct ChoiceConstraint {
  std::vector<std::string> choices;  // one of them, exactly
};
struct EbnfConstraint {
  std::string grammar;  // GBNF with a rule `root`
};

using OutputConstraint = std::variant<JsonObjectConstraint, JsonSchemaConstraint, RegexConstraint,
                                      ChoiceConstraint, EbnfConstraint>;

}  // namespace vamp
