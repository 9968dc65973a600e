#include "replay/trace_row.h"

#include <cmath>

#include "base/error.h"

namespace vamp {

TraceRow::TraceRow(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail("must be a JSON object");
}

void TraceRow::fail(const std::string& fault) const {
  throw Error("{}: {}", where_, fault);
}

bool TraceRow::has(const char* field) const {
  const auto found = object_.find(field);
  return found != object_.end() && !found->is_null();
}

const nlohmann::json& TraceRow::at(const char* field) const {
  const auto found = object_.find(field);
  if (found == object_.end()) fail(fmt::format("field \"{}\" is missing", field));
  return *found;
}

int64_t TraceRow::integer(const char* field, int64_t low, int64_t high) const {
  const nlohmann::json& value = at(field);
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(high)
                        : value.is_number_integer();
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    fail(fmt::format("field \"{}\" must be a whole number from {} to {}", field, low, high));
  }
  return value.get<int64_t>();
}

double TraceRow::number(const char* field, double low, double high) const {
  const nlohmann::json& value = at(field);
  if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high)) {
    fail(fmt::format("field \"{}\" must be a number from {:g} to {:g}", field, low, high));
  }
  return value.get<double>();
}

const std::string& TraceRow::string(const char* field) const {
  const nlohmann::json& value = at(field);
  if (!value.is_string()) fail(fmt::format("field \"{}\" must be a string", field));
  return value.get_ref<const std::string&>();
}

const nlohmann::json& TraceRow::array(const char* field) const {
  const nlohmann::json& value = at(field);
  if (!value.is_array()) fail(fmt::format("field \"{}\" must be an array", field));
  return value;
}

std::vector<uint64_t> TraceRow::block_ids(const char* field, uint64_t scope) const {
  std::vector<uint64_t> keys;
  const nlohmann::json& ids = array(field);
  keys.reserve(ids.size());
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{1} << 63) {
      fail(fmt::format("field \"{}\" must hold whole numbers from 0 to 2^63-1", field));
    }
    const uint64_t value = id.get<uint64_t>();
    keys.push_back(scope == 0 ? value : own_block_key(scope, value));
  }
  return keys;
}

Micros TraceRow::time(const char* field, Micros unit) const {
  return number(field, 0, 1e15 / unit * 10) * unit;
}

namespace {

// Reads JSON for nothing but the place of its first fault.
class FaultFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& fault) override {
    read = position;
    overflow = dynamic_cast<const nlohmann::json::out_of_range*>(&fault) != nullptr;
    return false;
  }

  size_t read = 0;  // bytes up to and with the faulty one; a number's fault is seen behind its end
  bool overflow = false;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& document, int first_line) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_discarded()) return json;
  FaultFinder fault;
  nlohmann::json::sax_parse(text, &fault);
  const size_t byte = std::min(fault.read == 0 ? 0 : fault.read - 1, text.size());
  const auto newlines = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(byte), '\n');
  const auto line = first_line + newlines;
  if (fault.overflow) {
    throw Error("trace {} line {}: holds a number that is too large for any field", document, line);
  }
  const size_t line_begin = text.substr(0, byte).rfind('\n');
  const size_t column = line_begin == std::string_view::npos ? byte + 1 : byte - line_begin;
  throw Error("trace {} line {}: not valid JSON at column {}; is the file complete?", document,
              line, column);
}

uint64_t own_block_key(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15ull + b + 1;  // splitmix64's mixing of the pair
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return (z ^ (z >> 31)) | uint64_t{1} << 63;
}

TextPrompt user_prompt(ChatMarkup& markup, bool first, std::string content) {
  TextPrompt prompt;
  prompt.continues = !first;
  prompt.lead = first ? markup.first("user") : markup.between("assistant", "user");
  prompt.trail = markup.answer("user");
  prompt.content = std::move(content);
  return prompt;
}

}  // namespace vamp
