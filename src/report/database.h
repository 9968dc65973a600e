// Runs as a SQLite file: tables runs, turns, steps, decisions (and the view decision_costs).
#pragma once

#include <string>

#include "report/run_record.h"

namespace vamp {

// Writes a new database to `path`. Throws Error naming the file (disk full, no permission); the
// file is then worthless.
void write_database(const std::string& path, const ReportRecord& report);

}  // namespace vamp
