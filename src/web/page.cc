#include "web/page.h"

#include "web/page_assets.h"

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

std::string make_page(const std::string& title, std::string_view script,
                      const nlohmann::json& data) {
  // "</" would end the script element that holds the data; "<\/" is the same JSON string.
  const std::string text = replace_all(
      data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "</", "<\\/");
  std::string page = kPageHtml;
  page = replace_all(std::move(page), "@STYLE@", kStyleCss);
  page = replace_all(std::move(page), "@SCRIPT@",
                     std::string(kChartsJs) + kWidgetsJs + std::string(script));
  page = replace_all(std::move(page), "@TITLE@", escape_html(title));
  return replace_all(std::move(page), "@DATA@", text);
}

}  // namespace vamp
