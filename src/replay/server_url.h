// Where a server is: `--url [NAME=]http://HOST[:PORT][/PREFIX]`.
#pragma once

#include <string>

namespace vamp {

struct ServerUrl {
  std::string text;  // as given, without the name
  std::string name;  // in the report; HOST:PORT unless given
  std::string host, port;
  std::string prefix;  // of every path; empty or "/..." without a slash at its end
};

// A "/v1" at the end is taken for the API's own. Throws Error naming --url.
ServerUrl parse_server_url(const std::string& text);

}  // namespace vamp
