#include "report/page.h"

#include <string_view>

#include "report/atomic_files.h"
#include "report/database.h"
#include "report/page_assets.h"
#include "report/results_json.h"

namespace vamp {
namespace {

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string escape_html(std::string text) {
  text = replace_all(std::move(text), "&", "&amp;");
  return replace_all(std::move(text), "<", "&lt;");
}

}  // namespace

std::string render_page(const ReportRecord& report) {
  // "</" would end the script element that holds the data; "<\/" is the same JSON string.
  const std::string data =
      replace_all(page_json(report).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                  "</", "<\\/");
  std::string page = kPageHtml;
  page = replace_all(std::move(page), "@STYLE@", kPageCss);
  page = replace_all(std::move(page), "@SCRIPT@", std::string(kChartsJs) + kPageJs + kDecisionsJs);
  page = replace_all(std::move(page), "@TITLE@", escape_html(report.title));
  return replace_all(std::move(page), "@DATA@", data);
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
