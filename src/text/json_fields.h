// Reading fields out of a JSON object with errors that name the object and the field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace vamp::json_fields {

using Json = nlohmann::json;

// The member, or null when it is absent. `where` names the object in errors.
inline const Json& optional(const Json& object, const char* key, std::string_view where) {
  static const Json null;
  if (!object.is_object()) throw Error("{} is not an object", where);
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

inline const Json& required(const Json& object, const char* key, std::string_view where) {
  const Json& value = optional(object, key, where);
  if (value.is_null()) throw Error("{} has no \"{}\"", where, key);
  return value;
}

inline const Json& array(const Json& object, const char* key, std::string_view where) {
  const Json& value = required(object, key, where);
  if (!value.is_array()) throw Error("\"{}\" of {} is not an array", key, where);
  return value;
}

inline const std::string& string(const Json& object, const char* key, std::string_view where) {
  const Json& value = required(object, key, where);
  if (!value.is_string()) throw Error("\"{}\" of {} is not a string", key, where);
  return value.get_ref<const std::string&>();
}

// `fallback` when the member is absent or null.
inline bool boolean(const Json& object, const char* key, bool fallback, std::string_view where) {
  const Json& value = optional(object, key, where);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) throw Error("\"{}\" of {} is neither true nor false", key, where);
  return value.get<bool>();
}

// A whole number in [0, limit).
inline int64_t natural(const Json& value, int64_t limit, std::string_view what) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= limit ||
      (value.is_number_unsigned() && value.get<uint64_t>() >= static_cast<uint64_t>(limit))) {
    throw Error("{} is {}, not a whole number below {}", what, value.dump().substr(0, 40), limit);
  }
  return value.get<int64_t>();
}

}  // namespace vamp::json_fields
