// The span of one request: what OpenTelemetry's collectors are told about it.
#pragma once

#include <chrono>
#include <string>

#include "server/generation.h"
#include "server/service.h"

namespace vamp {

// Told to the exporter when it goes, however the request ended. Does nothing without an exporter,
// or in a trace that its caller does not sample. All references must outlive it.
class RequestSpan {
 public:
  RequestSpan(Service& service, const GenerationRequest& request, const std::string& id,
              const Generation& generation)
      : service_(service), request_(request), id_(id), generation_(generation) {}
  ~RequestSpan();
  RequestSpan(const RequestSpan&) = delete;
  RequestSpan& operator=(const RequestSpan&) = delete;

 private:
  Span span() const;

  Service& service_;
  const GenerationRequest& request_;
  const std::string& id_;
  const Generation& generation_;
  const std::chrono::system_clock::time_point start_ = std::chrono::system_clock::now();
};

}  // namespace vamp
