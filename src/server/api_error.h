// A request's fault, or the server's, in the shape that OpenAI's clients read.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "server/http/message.h"

namespace vamp {

// Ends a request with an HTTP status. The message is one line for the user.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = {}, int retry_after = 0)
      : std::runtime_error(message),
        status_(status),
        param_(std::move(param)),
        retry_after_(retry_after) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }  // the field at fault; empty: none
  int retry_after() const { return retry_after_; }     // seconds; 0: no such header

  const char* type() const;  // vLLM's: "BadRequestError"
  std::string json() const;  // {"error": {...}}
  HttpResponse response() const;
  std::string anthropic_json() const;  // {"type": "error", "error": {...}}
  HttpResponse anthropic_response() const;

 private:
  HttpResponse with_body(std::string body) const;
  int status_;
  std::string param_;
  int retry_after_;
};

// Whatever was thrown, as what the client is told.
ApiError api_error_of(const std::exception& error);

// A field of the request's body that is not what it should be.
template <typename... Args>
[[noreturn]] void bad_field(const std::string& field, fmt::format_string<Args...> format,
                            Args&&... args) {
  throw ApiError(400, field + ": " + fmt::format(format, std::forward<Args>(args)...), field);
}

}  // namespace vamp
