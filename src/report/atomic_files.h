// A set of files that appears as a whole or not at all: each is written beside its place under a
// temporary name, and renamed once every one of them lies safely on the disk.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vamp {

// One thread. Without commit() the destructor removes what was written, and the folders made.
class AtomicFiles {
 public:
  // Throws Error when the folder could not be made or written to: before hours of work, not after.
  // Makes nothing.
  static void check_folder(const std::string& folder);

  // Makes the folder if it is not there. Throws Error when it cannot.
  explicit AtomicFiles(std::string folder);
  ~AtomicFiles();
  AtomicFiles(const AtomicFiles&) = delete;
  AtomicFiles& operator=(const AtomicFiles&) = delete;

  // Writes `content` for `name`. Throws Error (disk full, no permission) naming file and bytes.
  void write(const std::string& name, std::string_view content);
  // A path for somebody else to write `name` to, e.g. a database library.
  std::string reserve(const std::string& name);
  // Flushes to the disk and puts every file in its place.
  void commit();

 private:
  void remove_made();

  std::string folder_;
  std::vector<std::string> made_;  // folders that were not there, the innermost first
  std::vector<std::pair<std::string, std::string>> files_;  // temporary → final path
};

}  // namespace vamp
