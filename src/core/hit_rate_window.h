// Prefix-cache hit rate over the latest requests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vamp {

class HitRateWindow {
 public:
  explicit HitRateWindow(int requests) : entries_(std::max(requests, 1)) {}

  void add(int queried_tokens, int hit_tokens) {
    Entry& entry = entries_[next_++ % entries_.size()];
    queried_ += queried_tokens - entry.queried;
    hit_ += hit_tokens - entry.hit;
    entry = {queried_tokens, hit_tokens};
  }
  // Of tokens, not of requests; 0 before the first.
  double rate() const {
    return queried_ == 0 ? 0.0 : static_cast<double>(hit_) / static_cast<double>(queried_);
  }

 private:
  struct Entry {
    int queried = 0, hit = 0;
  };
  std::vector<Entry> entries_;
  uint64_t next_ = 0;
  int64_t queried_ = 0, hit_ = 0;
};

}  // namespace vamp
