// A report as one table of text: a line a figure, a column a policy.
#pragma once

#include <string>

#include "report/run_record.h"

namespace vamp {

std::string results_table(const ReportRecord& report);

}  // namespace vamp
