// The answer of POST /v1/completions with "stream": true, as its bytes come.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"

namespace vamp {

// One choice's stream of server-sent events. Plain data in, plain data out.
class CompletionStream {
 public:
  // Events may be cut anywhere. Throws Error for what is no such stream, and with the server's own
  // message where it reports a fault.
  void feed(std::string_view bytes);

  bool started = false;   // something was generated
  bool finished = false;  // the end was told
  FinishReason reason = FinishReason::kStop;
  std::vector<TokenId> tokens;  // where the server tells ids
  std::string text;
  int pieces = 0;  // events with something generated
  // Of its usage; -1: not told.
  int prompt_tokens = -1, cached_tokens = -1, output_tokens = -1;

 private:
  void line(std::string_view text);
  void event(const nlohmann::json& event);
  void choice(const nlohmann::json& choice);

  std::string rest_;  // of a line that has not ended
};

// What a server says of a fault: the message in OpenAI's or FastAPI's JSON, else the body's
// beginning; one line.
std::string server_fault(std::string_view body);

}  // namespace vamp
