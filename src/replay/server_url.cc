#include "replay/server_url.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace vamp {
namespace {

constexpr std::string_view kScheme = "http://";

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         text.find_first_not_of("0123456789") == std::string_view::npos &&
         std::stoi(std::string(text)) <= 65535;
}

}  // namespace

ServerUrl parse_server_url(const std::string& text) {
  ServerUrl url;
  url.text = text;
  const size_t equals = std::min(text.find('='), text.size());
  if (equals < text.find("://")) {
    url.name = text.substr(0, equals);
    url.text = text.substr(std::min(equals + 1, text.size()));
  }
  if (url.text.starts_with("https://"))
    throw Error("--url {}: https is not spoken; use http, through a tunnel or proxy", text);
  const auto fault = [&text] { return Error("--url {}: use [NAME=]http://HOST[:PORT]", text); };
  const bool odd = std::any_of(url.text.begin(), url.text.end(), [](char c) {
    return c <= ' ' || c == '?' || c == '#' || c == '@' || c == '\x7f';
  });
  if (!url.text.starts_with(kScheme) || odd) throw fault();
  std::string_view rest = std::string_view(url.text).substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.prefix = rest.substr(slash);
  rest = rest.substr(0, slash);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  if (url.prefix.ends_with("/v1")) url.prefix.resize(url.prefix.size() - 3);

  const bool ipv6 = rest.starts_with('[');
  const size_t host_end = std::min(ipv6 ? rest.find(']') : rest.find(':'), rest.size());
  url.host = rest.substr(ipv6 ? 1 : 0, host_end - (ipv6 ? 1 : 0));
  rest = rest.substr(host_end);
  bool fits = !url.host.empty();
  if (ipv6) {
    fits = fits && rest.starts_with(']');
    rest = rest.substr(std::min<size_t>(1, rest.size()));
  }
  fits = fits && (rest.empty() || rest.starts_with(':'));
  url.port = rest.empty() ? "80" : rest.substr(1);
  if (!fits || !is_port(url.port)) throw fault();
  if (url.name.empty()) url.name = url.host + ":" + url.port;
  return url;
}

}  // namespace vamp
