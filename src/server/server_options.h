// Everything about the server that a flag of `vamp serve` sets.
#pragma once

#include <string>
#include <vector>

#include "grammar/grammar_compiler.h"
#include "server/http/message.h"

namespace vamp {

struct ServerOptions {
  HttpOptions http;

  std::vector<std::string> served_names;  // of the model, in requests; the first is shown
  std::vector<std::string> api_keys;      // none: everybody may
  std::string chat_template;              // Jinja text in place of the model's; empty: the model's
  std::string tool_call_parser;
  std::string reasoning_parser;
  bool enable_auto_tool_choice = false;

  int max_waiting_requests = 2048;            // beyond: 503; 0: no limit
  size_t max_stream_backlog_bytes = 4 << 20;  // not yet taken by the client
  int max_logprobs = 20;
  int max_choices = 128;  // prompts x n of one request
  int max_json_depth = 128;
  int max_stop_strings = 64;
  GrammarLimits grammar;             // of constraints on the output
  int text_threads = 2;              // render, tokenize, compile grammars
  double drain_seconds = 30;         // after SIGTERM, until what is under way is cancelled
  double stall_seconds = 300;        // without a finished step, until the engine counts as stuck
  std::string otlp_traces_endpoint;  // URL of a collector; empty: no spans
  uint64_t seed = 0;                 // of requests without one
};

}  // namespace vamp
