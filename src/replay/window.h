// Which stretch of a run is counted.
#pragma once

#include <string_view>
#include <vector>

#include "report/run_record.h"

namespace vamp {

struct WindowRule {
  enum class Kind {
    kAll,    // the whole run
    kPaper,  // from the 128th finished turn to the first session that ends after all have started
    kTime,   // from `begin` to `end`
  };
  Kind kind = Kind::kAll;
  Micros begin = 0, end = 0;
};
// "all", "paper", or seconds "120:1800". Throws Error on anything else.
WindowRule parse_window(std::string_view text);

struct SessionTimes {
  Micros started = -1, ended = -1;  // -1: did not
};
// `slots` sessions run at once (0: all). Where the paper's rule gives nothing, the whole run is
// taken and the window's note says so.
Window make_window(const WindowRule& rule, const RunRecord& run,
                   const std::vector<SessionTimes>& sessions, int slots);

}  // namespace vamp
