#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "model/json_fields.h"

namespace vamp {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxIndexBytes = 256 * kMiB;
constexpr size_t kMaxDimensions = 16;

struct TypeBits {
  std::string_view name;
  size_t bits;
};
// All types of the format; of these we read BF16, F16 and F32. The others may lie in a checkpoint
// as long as nobody asks for them.
constexpr std::array<TypeBits, 22> kTypes{
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

size_t type_bits(std::string_view name) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TypeBits& type) { return type.name == name; });
  return found == kTypes.end() ? 0 : found->bits;
}

size_t parse_size(const nlohmann::json& value, const JsonFields& tensor, const char* field) {
  if (!value.is_number_unsigned()) {
    tensor.fault(field, fmt::format("{} is not a size", describe_json(value)));
  }
  return value.get<size_t>();
}

std::vector<size_t> parse_sizes(const JsonFields& tensor, const char* field, size_t max_count) {
  const nlohmann::json* list = tensor.find(field);
  if (list == nullptr) tensor.missing(field, "a list of sizes");
  if (!list->is_array() || list->size() > max_count) {
    tensor.wrong(field, fmt::format("a list of at most {} sizes", max_count));
  }
  std::vector<size_t> sizes;
  for (const nlohmann::json& value : *list) sizes.push_back(parse_size(value, tensor, field));
  return sizes;
}

// Bytes of a tensor of that type and shape.
size_t tensor_bytes(const SafetensorsEntry& entry, const JsonFields& tensor) {
  const size_t bits = type_bits(entry.dtype);
  if (bits == 0) tensor.wrong("dtype", "one of the safetensors types (BF16, F16, F32, ...)");
  size_t total = bits;
  for (const size_t size : entry.shape) {
    if (__builtin_mul_overflow(total, size, &total)) {
      tensor.fault("shape", "its product overflows 64 bits");
    }
  }
  if (total % 8 != 0) tensor.fault("shape", "its elements do not fill whole bytes");
  return total / 8;
}

SafetensorsEntry parse_entry(const std::string& name, const nlohmann::json& value,
                             const std::string& file, size_t data_begin, size_t file_size) {
  if (!value.is_object()) {
    throw Error("{}: tensor {} is {}; expected an object", file, quote(name), describe_json(value));
  }
  const JsonFields tensor(value, fmt::format("{}: tensor {}", file, quote(name)));
  SafetensorsEntry entry{name, tensor.string("dtype"), {}, 0, 0};
  entry.shape = parse_sizes(tensor, "shape", kMaxDimensions);
  const std::vector<size_t> offsets = parse_sizes(tensor, "data_offsets", 2);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    tensor.fault("data_offsets", "expected [begin, end] with begin <= end");
  }
  if (offsets[1] > file_size - data_begin) {
    tensor.fault("data_offsets",
                 fmt::format("it ends at byte {} of the data, of which the file holds {}: the file "
                             "is cut short or damaged; fetch it again",
                             offsets[1], file_size - data_begin));
  }
  const size_t expected = tensor_bytes(entry, tensor);
  if (offsets[1] - offsets[0] != expected) {
    tensor.fault("data_offsets", fmt::format("it holds {} bytes, but dtype and shape make {}",
                                             offsets[1] - offsets[0], expected));
  }
  entry.begin = data_begin + offsets[0];
  entry.end = data_begin + offsets[1];
  return entry;
}

void check_coverage(std::vector<SafetensorsEntry>& entries, size_t data_begin, size_t file_size,
                    const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  size_t covered = data_begin;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      throw Error("{}: tensor {} {} the one before it: the header is damaged", file,
                  quote(entry.name),
                  entry.begin < covered ? "overlaps" : "does not begin at the end of");
    }
    covered = entry.end;
  }
  if (covered != file_size) {
    throw Error("{}: the tensors end at byte {} but the file at byte {}: the file is damaged", file,
                covered, file_size);
  }
}

std::optional<DType> readable_type(std::string_view name) {
  if (name == "BF16") return DType::kBf16;
  if (name == "F16") return DType::kF16;
  if (name == "F32") return DType::kF32;
  return std::nullopt;
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> head,
                                                       size_t file_size, const std::string& file) {
  if (file_size < kLengthBytes || head.size() < kLengthBytes) {
    throw Error("{}: holds {} bytes, too few for a safetensors file", file, file_size);
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(head[i]) << (8 * i);
  if (length > kMaxHeaderBytes) {
    throw Error(
        "{}: its header claims {} bytes, above the format's limit of {}: not a safetensors "
        "file, or damaged",
        file, length, kMaxHeaderBytes);
  }
  if (length > file_size - kLengthBytes || length > head.size() - kLengthBytes) {
    throw Error("{}: its header claims {} bytes but the file holds {}: the file is cut short", file,
                length, file_size);
  }
  const auto* text = reinterpret_cast<const char*>(head.data()) + kLengthBytes;
  const nlohmann::json header =
      parse_json_object(std::string_view(text, length), file + ": safetensors header");
  const size_t data_begin = kLengthBytes + length;
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    entries.push_back(parse_entry(name, value, file, data_begin, file_size));
  }
  check_coverage(entries, data_begin, file_size, file);
  return entries;
}

std::unordered_map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                                     const std::string& file) {
  const nlohmann::json index = parse_json_object(text, file);
  const JsonFields fields(index, file);
  const nlohmann::json* map = fields.find("weight_map");
  if (map == nullptr) fields.missing("weight_map", "an object of tensor names and their files");
  if (!map->is_object() || map->empty()) {
    fields.wrong("weight_map", "an object of tensor names and their files");
  }
  std::unordered_map<std::string, std::string> files;
  for (const auto& [name, value] : map->items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    const bool plain = !shard.empty() && shard != "." && shard != ".." &&
                       shard.find('/') == std::string::npos &&
                       shard.find('\0') == std::string::npos;
    if (!plain) {
      fields.fault("weight_map",
                   fmt::format("tensor {} lies in {}; expected a file name inside the "
                               "folder",
                               quote(name), describe_json(value)));
    }
    files.emplace(name, shard);
  }
  return files;
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& folder) : folder_(folder) {
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    open_single(single);
  } else if (std::filesystem::exists(index)) {
    open_sharded(index);
  } else {
    throw Error(
        "{}: holds neither model.safetensors nor model.safetensors.index.json; expected a "
        "checkpoint in safetensors format (--load-format dummy makes random weights)",
        folder.string());
  }
}

std::vector<SafetensorsEntry> SafetensorsReader::open_file(const std::filesystem::path& path) {
  files_.emplace_back(path);
  const auto bytes = files_.back().bytes();
  return parse_safetensors_header(bytes, bytes.size(), path.string());
}

void SafetensorsReader::open_single(const std::filesystem::path& path) {
  for (SafetensorsEntry& entry : open_file(path)) {
    std::string name = entry.name;
    tensors_.emplace(std::move(name), Location{0, std::move(entry)});
  }
}

void SafetensorsReader::open_sharded(const std::filesystem::path& index) {
  const auto weight_map =
      parse_safetensors_index(read_text_file(index, kMaxIndexBytes), index.string());
  std::map<std::string, size_t> wanted;  // file -> tensors that the index places in it
  for (const auto& [name, shard] : weight_map) ++wanted[shard];
  for (const auto& [shard, count] : wanted) {
    const auto path = folder_ / shard;
    if (!std::filesystem::exists(path)) {
      throw Error("{}: the shard {} that it lists ({} tensors) is missing", index.string(),
                  quote(shard), count);
    }
    const size_t file = files_.size();
    for (SafetensorsEntry& entry : open_file(path)) {
      const auto mapped = weight_map.find(entry.name);
      if (mapped == weight_map.end() || mapped->second != shard) continue;
      std::string name = entry.name;
      tensors_.emplace(std::move(name), Location{file, std::move(entry)});
    }
  }
  for (const auto& [name, shard] : weight_map) {
    if (!tensors_.contains(name)) {
      throw Error("{}: tensor {} is not in {}, where the index places it", index.string(),
                  quote(name), quote(shard));
    }
  }
}

std::optional<TensorInfo> SafetensorsReader::describe(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return std::nullopt;
  const SafetensorsEntry& entry = found->second.entry;
  const std::optional<DType> dtype = readable_type(entry.dtype);
  if (!dtype) {
    throw Error("{}: tensor {} has dtype {}; expected BF16, F16 or F32", folder_.string(),
                quote(name), entry.dtype);
  }
  return TensorInfo{*dtype, entry.shape, entry.end - entry.begin};
}

std::optional<TensorView> SafetensorsReader::find(const std::string& name) const {
  std::optional<TensorInfo> info = describe(name);
  if (!info) return std::nullopt;
  const Location& location = tensors_.at(name);
  return TensorView{std::move(*info), files_[location.file].bytes().data() + location.entry.begin};
}

void SafetensorsReader::release(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return;
  const SafetensorsEntry& entry = found->second.entry;
  files_[found->second.file].release(entry.begin, entry.end - entry.begin);
}

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : tensors_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vamp
