// The report's own scripts (src/report/page), built into the library.
#pragma once

namespace vamp {

extern const char* const kReportJs;
extern const char* const kDecisionsJs;

}  // namespace vamp
