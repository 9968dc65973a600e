// The "normalizer" of tokenizer.json: Unicode forms, lower case, accents, Prepend and Replace,
// alone or in a Sequence. Anything else is refused by name.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer_limits.h"

namespace vamp {

// Immutable after construction: any thread may use it.
class Normalizer {
 public:
  // No steps: text stays as it is.
  Normalizer();
  // `json` is the "normalizer" object or null. Throws Error.
  Normalizer(const nlohmann::json& json, const TokenizerLimits& limits);
  ~Normalizer();
  Normalizer(Normalizer&&) noexcept;
  Normalizer& operator=(Normalizer&&) noexcept;

  bool empty() const { return steps_.empty(); }

  // Normalizes `text` (valid UTF-8). The result is `text` itself where nothing changes, else it
  // lies in `storage`. Throws Error when the text grows beyond the limit.
  std::string_view normalize(std::string_view text, RegexScratch& scratch,
                             std::string& storage) const;

  class Step;

 private:
  void add_steps(const nlohmann::json& json, const TokenizerLimits& limits, int depth);

  std::vector<std::unique_ptr<Step>> steps_;
  size_t growth_ = 0;
};

}  // namespace vamp
