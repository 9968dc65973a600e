// Any bytes as the body of a request to each API: read and tokenized, or refused with a 400 that
// says why. Nothing else, whatever the bytes are.
#include "server/api/completion_request.h"
#include "server/api/messages_request.h"
#include "server/api/responses_request.h"
#include "server/test_support.h"

namespace {

using vamp::HttpRequest;
using vamp::Service;

vamp::ServerOptions fuzz_options() {
  vamp::ServerOptions options;
  options.enable_auto_tool_choice = true;
  options.tool_call_parser = "hermes";
  options.reasoning_parser = "qwen3";
  return options;
}

void prepare(Service& service, const HttpRequest& http, int api) {
  switch (api) {
    case 0:
      vamp::prepare_completion(service, http);
      break;
    case 1:
      vamp::prepare_chat(service, http);
      break;
    case 2:
      vamp::prepare_responses(service, http);
      break;
    default:
      vamp::prepare_messages(service, http, /*count_only=*/false);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static vamp::TestServer server("Hello", fuzz_options());
  if (size < 1) return 0;
  HttpRequest http;
  http.method = "POST";
  http.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    prepare(server.server().service(), http, data[0] % 4);
  } catch (const vamp::ApiError& error) {
    if (error.status() < 400 || error.status() >= 500) __builtin_trap();
    error.response();
  } catch (const vamp::TemplateError&) {  // a 400 with the template's words
  }
  return 0;
}
