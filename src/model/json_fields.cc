#include "model/json_fields.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace vamp {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxQuoted = 120;

// Refuses keys given twice: readers differ in which one they take, and a file made to be read in
// two ways is not to be trusted.
class StrictKeys {
 public:
  explicit StrictKeys(const std::string& file) : file_(file) {}

  void operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxDepth) throw Error("{}: JSON nested deeper than {} levels", file_, kMaxDepth);
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end && !keys_.empty()) keys_.pop_back();
    if (event == Event::key && !keys_.empty()) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw Error("{}: the key {} is given twice in one object", file_, quote(key));
      }
    }
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> keys_;
};

std::string range_text(double low, double high, const char* what) {
  return fmt::format("{} from {} to {}", what, low, high);
}

}  // namespace

nlohmann::json parse_json_object(std::string_view text, const std::string& file) {
  nlohmann::json value;
  StrictKeys keys(file);
  try {
    value = nlohmann::json::parse(
        text.begin(), text.end(),
        [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
          keys(depth, event, parsed);
          return true;
        });
  } catch (const nlohmann::json::parse_error& error) {
    throw Error("{}: not valid JSON: fault at byte {}", file, error.byte);
  } catch (const nlohmann::json::exception& error) {
    throw Error("{}: not valid JSON: {}", file, quote(error.what()));
  }
  if (!value.is_object()) {
    throw Error("{}: holds {}; expected a JSON object", file, describe_json(value));
  }
  return value;
}

std::string quote(std::string_view name) {
  const std::string text = nlohmann::json(std::string(name.substr(0, kMaxQuoted)))
                               .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return fmt::format("'{}{}'", std::string_view(text).substr(1, text.size() - 2),
                     name.size() > kMaxQuoted ? "..." : "");
}

std::string describe_json(const nlohmann::json& value) {
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  if (value.is_primitive()) return value.dump();
  return value.is_array() ? "a list" : "an object";
}

const nlohmann::json* JsonFields::find(const char* field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

int JsonFields::integer(const char* field, int low, int high) const {
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  const nlohmann::json* value = find(field);
  if (value == nullptr) missing(field, expected);
  if (!value->is_number_integer()) wrong(field, expected);
  const bool too_big =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_big ? INT64_MAX : value->get<int64_t>();
  if (number < low || number > high) wrong(field, expected);
  return static_cast<int>(number);
}

int JsonFields::integer_or(const char* field, int fallback, int low, int high) const {
  return has(field) ? integer(field, low, high) : fallback;
}

double JsonFields::number(const char* field, double low, double high) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) missing(field, range_text(low, high, "a number"));
  if (!value->is_number()) wrong(field, range_text(low, high, "a number"));
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) wrong(field, range_text(low, high, "a number"));
  return number;
}

double JsonFields::number_or(const char* field, double fallback, double low, double high) const {
  return has(field) ? number(field, low, high) : fallback;
}

std::optional<double> JsonFields::optional_number(const char* field, double low,
                                                  double high) const {
  if (!has(field)) return std::nullopt;
  return number(field, low, high);
}

bool JsonFields::boolean_or(const char* field, bool fallback) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) wrong(field, "true or false");
  return value->get<bool>();
}

std::string JsonFields::string(const char* field) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) missing(field, "a string");
  if (!value->is_string()) wrong(field, "a string");
  return value->get<std::string>();
}

std::optional<JsonFields> JsonFields::nested(const char* field) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) wrong(field, "an object");
  return JsonFields(*value, file_, prefix_ + field + ".");
}

void JsonFields::missing(const char* field, const std::string& expected) const {
  throw Error("{}: field '{}{}' is missing; expected {}", file_, prefix_, field, expected);
}

void JsonFields::wrong(const char* field, const std::string& expected) const {
  const auto found = object_.find(field);
  const std::string value = found == object_.end() ? "missing" : describe_json(*found);
  throw Error("{}: field '{}{}' is {}; expected {}", file_, prefix_, field, value, expected);
}

void JsonFields::fault(const char* field, const std::string& message) const {
  throw Error("{}: field '{}{}': {}", file_, prefix_, field, message);
}

}  // namespace vamp
