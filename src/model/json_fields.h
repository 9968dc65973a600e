// JSON from the outside world (config.json, safetensors headers and indexes): parsing and typed
// field access in which every fault is an Error naming the file, the field and what was expected.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace vamp {

// Throws Error naming `file` on malformed JSON, a key given twice in one object, nesting deeper
// than 64 levels, or when the outermost value is not an object.
nlohmann::json parse_json_object(std::string_view text, const std::string& file);

// A name out of a file, for a message: in quotes, one line, plain ASCII, cut at 120 characters.
std::string quote(std::string_view name);

// What a JSON value is, for a message: its text when short, else its type.
std::string describe_json(const nlohmann::json& value);

// The fields of one JSON object. It refers to the object, which must outlive it. A field that is
// null counts as absent, as in transformers.
class JsonFields {
 public:
  // `prefix` stands before field names in messages: "rope_parameters." for a nested object.
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  const nlohmann::json* find(const char* field) const;  // null when absent or null
  bool has(const char* field) const { return find(field) != nullptr; }
  const std::string& file() const { return file_; }

  // An integer in [low, high]; without a fallback the field is required.
  int integer(const char* field, int low, int high) const;
  int integer_or(const char* field, int fallback, int low, int high) const;
  // A finite number in [low, high].
  double number(const char* field, double low, double high) const;
  double number_or(const char* field, double fallback, double low, double high) const;
  std::optional<double> optional_number(const char* field, double low, double high) const;
  bool boolean_or(const char* field, bool fallback) const;
  std::string string(const char* field) const;
  std::optional<JsonFields> nested(const char* field) const;  // the field must hold an object

  [[noreturn]] void missing(const char* field, const std::string& expected) const;
  // "FILE: field 'F' is VALUE; expected EXPECTED"
  [[noreturn]] void wrong(const char* field, const std::string& expected) const;
  // For faults between fields: "FILE: field 'F': MESSAGE".
  [[noreturn]] void fault(const char* field, const std::string& message) const;

 private:
  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
};

}  // namespace vamp
