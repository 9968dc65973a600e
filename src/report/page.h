// A report as one HTML page that needs nothing else: style, script and data are inside.
#pragma once

#include <string>

#include "report/run_record.h"

namespace vamp {

// Lines are brought down to a few hundred points each, so that the page stays far below 3 MB.
std::string render_page(const ReportRecord& report);

// Writes results.json, results.sqlite and report.html into `folder`: all of them or none. Throws
// Error in one line when the disk is full or the folder cannot be written. Returns the page's path.
std::string write_report(const std::string& folder, const ReportRecord& report);

}  // namespace vamp
