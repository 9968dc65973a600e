#include "replay/http_target.h"

#include <boost/asio/co_spawn.hpp>
#include <nlohmann/json.hpp>

#include "replay/completion_stream.h"

namespace vamp {

namespace asio = boost::asio;

struct HttpTarget::Call {
  Call(RequestInput input, asio::io_context& io) : request(std::move(input)), stream(io) {}

  RequestInput request;
  boost::beast::tcp_stream stream;
  CompletionStream answer;
  Micros first_token = NAN, finished = NAN;
  bool cancelled = false;
};

HttpTarget::HttpTarget(RemoteServer server, PromptBuilder::Encode encode, Clock& clock,
                       EngineListener& listener)
    : server_(std::move(server)),
      encode_(std::move(encode)),
      clock_(clock),
      listener_(listener),
      work_(io_.get_executor()) {
  VAMP_CHECK(!clock.jumps());
}

HttpTarget::~HttpTarget() = default;

void HttpTarget::submit(RequestInput request) {
  const RequestId id = request.id;
  const auto call = std::make_shared<Call>(std::move(request), io_);
  calls_[id] = call;
  asio::co_spawn(io_, run(call), [](const std::exception_ptr& fault) {
    if (fault) std::rethrow_exception(fault);  // out of step()
  });
}

void HttpTarget::cancel(RequestId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  found->second->cancelled = true;
  found->second->stream.close();
}

void HttpTarget::wait(Micros until) {
  const double left = std::max(0.0, until - clock_.now());
  io_.run_one_for(std::chrono::microseconds(static_cast<int64_t>(std::min(left, 1e9))));
}

HttpCall HttpTarget::completion(const RequestInput& request) const {
  const SamplingParams& sampling = request.sampling;
  const nlohmann::json body = {{"model", server_.model},
                               {"prompt", request.prompt},
                               {"max_tokens", sampling.max_tokens},
                               {"min_tokens", sampling.min_tokens},
                               {"ignore_eos", sampling.ignore_eos},
                               {"temperature", sampling.temperature},
                               {"stream", true},
                               {"stream_options", {{"include_usage", true}}},
                               {"return_token_ids", true}};
  return {"/v1/completions",
          body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
          {{"X-Session-ID", fmt::format("vamp-replay-{}", request.reuse.session)}}};
}

asio::awaitable<void> HttpTarget::run(std::shared_ptr<Call> call) {
  std::string error;
  try {
    const HttpCall request = completion(call->request);
    const std::function<void(std::string_view)> on_body = [&](std::string_view bytes) {
      call->answer.feed(bytes);
      const auto now_if = [this](bool seen, Micros& time) {
        if (seen && std::isnan(time)) time = clock_.now();
      };
      now_if(call->answer.started, call->first_token);
      now_if(call->answer.finished, call->finished);
    };
    if (!call->cancelled) co_await http_call(call->stream, server_, request, on_body);
    if (!call->answer.finished) error = "the stream ended before the answer did";
  } catch (const Error& fault) {
    error = fault.what();
  }
  call->stream.close();
  end(*call, std::move(error));
}

void HttpTarget::end(const Call& call, std::string error) {
  const CompletionStream& answer = call.answer;
  const std::vector<TokenId> tokens =
      answer.tokens.empty() && encode_ ? encode_(answer.text) : answer.tokens;
  RequestEvent event;
  event.id = call.request.id;
  RequestStats stats;
  stats.id = event.id;
  stats.session = call.request.reuse.session;
  stats.arrival = call.request.arrival;
  stats.finished = std::isnan(call.finished) ? clock_.now() : call.finished;
  stats.first_scheduled = stats.queued = NAN;
  stats.first_token = call.first_token;
  stats.prompt_tokens = answer.prompt_tokens >= 0 ? answer.prompt_tokens
                                                  : static_cast<int>(call.request.prompt.size());
  stats.cached_tokens = std::max(0, answer.cached_tokens);
  cached_told_ = cached_told_ || answer.cached_tokens >= 0;
  // A server that neither counts nor tells ids sends a token an event, as most do.
  stats.output_tokens = answer.output_tokens >= 0 ? answer.output_tokens
                        : !answer.tokens.empty()  ? static_cast<int>(answer.tokens.size())
                                                  : answer.pieces;
  if (error.empty() && stats.output_tokens == 0) error = "the answer has no token";
  for (const TokenId token : tokens) {
    event.token = token;
    listener_.on_token(event);
  }
  event.kind = RequestEvent::Kind::kFinished;
  event.reason = call.cancelled   ? FinishReason::kCancelled
                 : !error.empty() ? FinishReason::kError
                                  : answer.reason;
  event.error = std::move(error);
  stats.reason = event.reason;
  calls_.erase(event.id);
  listener_.on_finished(event, stats);
}

}  // namespace vamp
