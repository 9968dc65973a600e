// The body of Anthropic's POST /v1/messages, brought into OpenAI's form.
#pragma once

#include "server/api/chat_request.h"

namespace vamp {

// On a text thread. Throws ApiError, TemplateError. `count_only`: max_tokens is not needed.
ChatRequest prepare_messages(Service& service, const HttpRequest& http, bool count_only);

}  // namespace vamp
