// A report as JSON: results.json, and the data of the page.
#pragma once

#include <nlohmann/json.hpp>

#include "report/metrics.h"
#include "report/run_record.h"
#include "report/series.h"

namespace vamp {

// {"title", "settings", "notes", "runs": [{"policy", "ttft_s": {mean,p50,p90,p99}, ...}]}. A figure
// that does not exist (no such requests) is null.
nlohmann::ordered_json results_json(const ReportRecord& report);

// results_json with each run's "series" for drawing.
nlohmann::ordered_json page_json(const ReportRecord& report, const SeriesOptions& options = {});

}  // namespace vamp
