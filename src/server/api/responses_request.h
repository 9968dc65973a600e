// The body of POST /v1/responses, brought into the form of a chat.
#pragma once

#include "server/api/chat_request.h"

namespace vamp {

struct ResponsesRequest {
  ChatRequest chat;
  Json echoed = Json::object();  // fields of the request that its answer repeats
};

// On a text thread. Throws ApiError, TemplateError.
ResponsesRequest prepare_responses(Service& service, const HttpRequest& http);

}  // namespace vamp
