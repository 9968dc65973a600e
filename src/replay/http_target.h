// Replays against an OpenAI-compatible server.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <unordered_map>

#include "replay/http_call.h"
#include "replay/prompt_builder.h"
#include "replay/replay_target.h"

namespace vamp {

// Each request is a streamed POST /v1/completions of token ids on a connection of its own. Times
// are those of `clock`, seen from here; tokens are what the server's usage says. Nothing is known
// of steps, decisions, memory and the queue: such figures are NaN. Not for a clock that jumps.
class HttpTarget final : public ReplayTarget {
 public:
  // References must outlive the target. `encode` (may be null) gives the ids of an answer whose
  // server tells only its text.
  HttpTarget(RemoteServer server, PromptBuilder::Encode encode, Clock& clock,
             EngineListener& listener);
  ~HttpTarget() override;

  void submit(RequestInput request) override;
  void cancel(RequestId id) override;
  bool step() override { return io_.poll() > 0; }
  void wait(Micros until) override;

  // Whether any answer said how much of its prompt was cached.
  bool cached_tokens_told() const { return cached_told_; }

 private:
  struct Call;

  boost::asio::awaitable<void> run(std::shared_ptr<Call> call);
  HttpCall completion(const RequestInput& request) const;
  void end(const Call& call, std::string error);

  const RemoteServer server_;
  const PromptBuilder::Encode encode_;
  Clock& clock_;
  EngineListener& listener_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::unordered_map<RequestId, std::shared_ptr<Call>> calls_;
  bool cached_told_ = false;
};

}  // namespace vamp
