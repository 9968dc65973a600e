#include "server/api/fields.h"

#include <cmath>

#include "text/json_depth.h"

namespace vamp {
namespace {

constexpr size_t kShownBytes = 60;

std::string shown(const Json& value) {
  std::string text = dump(value);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  // A character cut in two must not end up in the answer.
  return Json::parse(dump(Json(text))).get<std::string>();
}

}  // namespace

Json parse_body(std::string_view body, int max_depth) {
  if (nested_deeper_than(body, max_depth)) {
    throw ApiError(
        400, fmt::format("the body is nested more than {} deep (--max-json-depth)", max_depth));
  }
  try {
    Json json = Json::parse(body);
    if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
    return json;
  } catch (const Json::exception& error) {
    throw ApiError(400, fmt::format("the body is not valid JSON: {}", error.what()));
  }
}

std::optional<int64_t> whole_number(const Json& value, int64_t least, int64_t most) {
  int64_t number = 0;
  if (value.is_number_float()) {
    constexpr double kExact = int64_t{1} << 53;  // beyond, doubles skip whole numbers
    const double real = value.get<double>();
    if (!(std::abs(real) <= kExact) || real != std::trunc(real)) return std::nullopt;
    number = static_cast<int64_t>(real);
  } else if (value.is_number_unsigned()) {
    const auto natural = value.get<uint64_t>();
    if (natural > std::numeric_limits<int64_t>::max()) return std::nullopt;
    number = static_cast<int64_t>(natural);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else {
    return std::nullopt;
  }
  if (number < least || number > most) return std::nullopt;
  return number;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void append_escaped(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text.substr(start, i - start));
    start = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        out += "\\u00";
        out += kHex[c >> 4];
        out += kHex[c & 15];
    }
  }
  out.append(text.substr(start));
}

void append_line(std::string_view text, std::string& out) {
  if (!out.empty()) out += '\n';
  out += text;
}

Fields::Fields(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {
  if (!object_.is_object()) bad_field(prefix_, "expected an object, not {}", shown(object_));
}

const Json* Fields::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::string Fields::name(const char* key) const {
  return prefix_.empty() ? key : prefix_ + "." + key;
}

bool Fields::boolean(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) bad_field(name(key), "expected true or false, not {}", shown(*value));
  return value->get<bool>();
}

double Fields::number(const char* key, double fallback, double least, double most) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    bad_field(name(key), "expected a number from {:g} to {:g}, not {}", least, most, shown(*value));
  }
  return value->get<double>();
}

int64_t Fields::integer(const char* key, int64_t fallback, int64_t least, int64_t most) const {
  const Json* value = find(key);
  if (!value) return fallback;
  const auto number = whole_number(*value, least, most);
  if (!number)
    bad_field(name(key), "expected a whole number from {} to {}, not {}", least, most,
              shown(*value));
  return *number;
}

std::string Fields::string(const char* key, const std::string& fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) bad_field(name(key), "expected a string, not {}", shown(*value));
  return value->get<std::string>();
}

std::vector<std::string> Fields::strings(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> out;
  if (value->is_array()) {
    for (const Json& entry : *value) {
      if (entry.is_string()) out.push_back(entry.get<std::string>());
    }
  }
  if (!value->is_array() || out.size() != value->size()) {
    bad_field(name(key), "expected a string or a list of strings, not {}", shown(*value));
  }
  return out;
}

}  // namespace vamp
