// Reading a request's JSON: unknown fields are passed over, a wrong type is a 400 that names the
// field.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace vamp {

using Json = nlohmann::ordered_json;

// The most that a field which becomes an int may be.
inline constexpr int kMaxInt = std::numeric_limits<int>::max();

// A request's body. Throws ApiError when it is no JSON object, no UTF-8, or nested too deeply.
Json parse_body(std::string_view body, int max_depth);

// The whole number that this is, if it lies within; 4.0 is one, as JSON Schema has it.
std::optional<int64_t> whole_number(const Json& value, int64_t least, int64_t most);

// Serialized; text that is not UTF-8 becomes U+FFFD.
std::string dump(const Json& json);

// Appends the text as the inside of a JSON string. For text known to be UTF-8.
void append_escaped(std::string_view text, std::string& out);

// Appends the text behind what is there, on a line of its own.
void append_line(std::string_view text, std::string& out);

// One object of a request. `prefix` names it in errors ("stream_options"); empty at the top. The
// object must outlive this. Null counts as absent.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {});

  const Json* find(const char* key) const;
  std::string name(const char* key) const;  // with the prefix

  bool boolean(const char* key, bool fallback) const;
  double number(const char* key, double fallback, double least, double most) const;
  int64_t integer(const char* key, int64_t fallback, int64_t least, int64_t most) const;
  std::string string(const char* key, const std::string& fallback = {}) const;
  std::vector<std::string> strings(const char* key) const;  // a string counts as a list of one

 private:
  const Json& object_;
  std::string prefix_;
};

}  // namespace vamp
