#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "text/chat_renderer.h"

namespace vamp {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

const char* ApiError::type() const {
  switch (status_) {
    case 401:
      return "AuthenticationError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 413:
      return "RequestTooLargeError";
    case 415:
      return "UnsupportedMediaTypeError";
    case 429:
      return "RateLimitError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return status_ < 500 ? "BadRequestError" : "InternalServerError";
  }
}

std::string ApiError::json() const {
  Json error = {{"message", what()}, {"type", type()}, {"param", nullptr}, {"code", status_}};
  if (!param_.empty()) error["param"] = param_;
  return text_of({{"error", error}});
}

std::string ApiError::anthropic_json() const {
  return text_of(
      {{"type", "error"}, {"error", {{"type", anthropic_type(status_)}, {"message", what()}}}});
}

HttpResponse ApiError::with_body(std::string body) const {
  HttpResponse response{status_, std::move(body)};
  if (retry_after_ > 0) response.headers.emplace_back("Retry-After", std::to_string(retry_after_));
  return response;
}

HttpResponse ApiError::response() const {
  return with_body(json());
}

HttpResponse ApiError::anthropic_response() const {
  return with_body(anthropic_json());
}

ApiError api_error_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const ApiError*>(&error)) return *known;
  if (dynamic_cast<const TemplateError*>(&error)) return ApiError(400, error.what(), "messages");
  if (dynamic_cast<const Error*>(&error)) return ApiError(400, error.what());
  if (dynamic_cast<const std::bad_alloc*>(&error)) return ApiError(500, "out of memory");
  return ApiError(500, error.what());
}

}  // namespace vamp
