// Reads safetensors checkpoints: `model.safetensors`, or the shards that
// `model.safetensors.index.json` lists. Format: 8 bytes little-endian N, N bytes of JSON
// {"name": {"dtype", "shape", "data_offsets": [begin, end]}}, then the data, which the tensors must
// cover wholly, without gap or overlap.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/mapped_file.h"
#include "model/tensor_source.h"

namespace vamp {

// What a header says of one tensor. `begin` and `end` count from the start of the file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as written: "BF16", "F8_E4M3", ...
  std::vector<size_t> shape;
  size_t begin = 0, end = 0;
};

// The header of a file whose first bytes are `head` (at least the whole header, when there is one)
// and whose length is `file_size`. Everything in it is checked; throws Error naming `file` and the
// fault.
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> head,
                                                       size_t file_size, const std::string& file);

// The weight_map of an index: tensor name -> file name, each a plain name inside the folder.
std::unordered_map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                                     const std::string& file);

// A folder's tensors. Owns the mappings; the constructor reads and checks all headers and no
// weights. Read from any thread.
class SafetensorsReader final : public TensorSource {
 public:
  explicit SafetensorsReader(const std::filesystem::path& folder);

  std::optional<TensorInfo> describe(const std::string& name) const override;
  std::optional<TensorView> find(const std::string& name) const override;
  void release(const std::string& name) const override;
  std::string description() const override { return folder_.string(); }

  std::vector<std::string> names() const;  // sorted

 private:
  struct Location {
    size_t file = 0;  // in files_
    SafetensorsEntry entry;
  };
  void open_single(const std::filesystem::path& path);
  void open_sharded(const std::filesystem::path& index);
  std::vector<SafetensorsEntry> open_file(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<MappedFile> files_;
  std::unordered_map<std::string, Location> tensors_;
};

}  // namespace vamp
