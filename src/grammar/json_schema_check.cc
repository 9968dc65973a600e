#include "grammar/json_schema_check.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace vamp {
namespace {

using nlohmann::json;

constexpr const char* kUnsupported[] = {
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
};
// Keywords whose value is a schema, a list of schemas, or an object of schemas.
constexpr const char* kSchema[] = {"items",
                                   "additionalProperties",
                                   "additionalItems",
                                   "unevaluatedProperties",
                                   "unevaluatedItems",
                                   "propertyNames"};
constexpr const char* kCounts[] = {"minLength", "maxLength",     "minItems",
                                   "maxItems",  "minProperties", "maxProperties"};
constexpr const char* kSchemaList[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr const char* kSchemaMap[] = {"properties", "patternProperties", "$defs", "definitions"};

class Walk {
 public:
  explicit Walk(const JsonSchemaLimits& limits) : limits_(limits) {}

  // A first walk over all JSON, so that the second one may recurse without a thought.
  void measure(const json& value, int depth = 0) {
    if (depth > limits_.depth) {
      throw Error("JSON schema: nested more than {} deep", limits_.depth);
    }
    if (++nodes_ > limits_.nodes) {
      throw Error("JSON schema: more than {} values", limits_.nodes);
    }
    if (!value.is_structured()) return;
    for (const json& child : value) measure(child, depth + 1);
  }

  void schema(const json& value, const std::string& where) const {
    if (value.is_boolean()) return;
    if (!value.is_object()) {
      throw Error("JSON schema: {} is not an object or a boolean", place(where));
    }
    keywords(value, where);
    for (const char* key : kSchema) {
      // The list form of `items` is prefixItems of older drafts.
      if (!value.contains(key)) continue;
      if (value[key].is_array()) {
        throw Error("JSON schema: {}/{} is a list: use prefixItems", where, key);
      }
      schema(value[key], where + "/" + key);
    }
    for (const char* key : kSchemaList) {
      if (!value.contains(key)) continue;
      if (!value[key].is_array()) throw Error("JSON schema: {}/{} is not a list", where, key);
      for (size_t i = 0; i < value[key].size(); ++i) {
        schema(value[key][i], fmt::format("{}/{}/{}", where, key, i));
      }
    }
    for (const char* key : kSchemaMap) {
      if (!value.contains(key)) continue;
      if (!value[key].is_object()) throw Error("JSON schema: {}/{} is not an object", where, key);
      for (const auto& [name, child] : value[key].items()) {
        schema(child, where + "/" + key + "/" + name);
      }
    }
  }

 private:
  static std::string place(const std::string& where) { return where.empty() ? "the root" : where; }

  void keywords(const json& value, const std::string& where) const {
    for (const char* key : kUnsupported) {
      // "uniqueItems": false and its like ask for nothing.
      if (value.contains(key) && value[key] != false) refuse(key, where);
    }
    if (value.contains("allOf") && value["allOf"].is_array() && value["allOf"].size() > 1) {
      refuse("allOf with several schemas", where);
    }
    if (value.contains("$ref")) {
      const json& ref = value["$ref"];
      const std::string uri = ref.is_string() ? ref.get<std::string>() : "";
      if (uri != "#" && uri.rfind("#/", 0) != 0) {
        refuse("$ref to anything but a place in the same schema (#/...)", where);
      }
    }
    for (const char* key : kCounts) {
      if (!value.contains(key)) continue;
      if (!value[key].is_number_integer() || value[key] < 0) {
        throw Error("JSON schema: {} at {} is not a count", key, place(where));
      }
      if (value[key] > limits_.max_repetition) {
        throw Error("JSON schema: {} at {} is above the {} allowed", key, place(where),
                    limits_.max_repetition);
      }
    }
    if (value.contains("pattern") && value["pattern"].is_string()) {
      check_regex_repetition(value["pattern"].get<std::string>(), limits_.max_repetition);
    }
    if (value.contains("multipleOf") && value.value("type", json()) != "integer") {
      refuse("multipleOf for anything but type integer", where);
    }
  }

  [[noreturn]] static void refuse(const char* keyword, const std::string& where) {
    throw Error("JSON schema: {} is not supported (at {})", keyword, place(where));
  }

  JsonSchemaLimits limits_;
  size_t nodes_ = 0;
};

}  // namespace

void check_regex_repetition(std::string_view pattern, int max_repetition) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
      continue;
    }
    if (pattern[i] != '{') continue;
    long number = 0;
    for (size_t j = i + 1; j < pattern.size() && pattern[j] != '}'; ++j) {
      const char c = pattern[j];
      if (c == ',' || c == ' ') {
        number = 0;
      } else if (c < '0' || c > '9') {
        break;  // no repetition
      } else if ((number = number * 10 + (c - '0')) > max_repetition) {
        throw Error("a repetition of more than {} in a pattern", max_repetition);
      }
    }
  }
}

void check_json_schema(const json& schema, const JsonSchemaLimits& limits) {
  Walk walk(limits);
  walk.measure(schema);
  walk.schema(schema, "");
}

}  // namespace vamp
