#include "report/page.h"

#include "report/atomic_files.h"
#include "report/database.h"
#include "report/page_assets.h"
#include "report/results_json.h"
#include "web/page.h"

namespace vamp {

std::string render_page(const ReportRecord& report) {
  return make_page(report.title, std::string(kReportJs) + kDecisionsJs, page_json(report));
}

std::string write_report(const std::string& folder, const ReportRecord& report) {
  AtomicFiles files(folder);
  files.write(
      "results.json",
      results_json(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  write_database(files.reserve("results.sqlite"), report);
  files.write("report.html", render_page(report));
  files.commit();
  return folder + "/report.html";
}

}  // namespace vamp
