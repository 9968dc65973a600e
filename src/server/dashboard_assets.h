// The dashboard's script (src/server/dashboard), built into the library.
#pragma once

namespace vamp {

extern const char* const kDashboardJs;

}  // namespace vamp
