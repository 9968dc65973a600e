#include "server/generation.h"

#include <algorithm>
#include <boost/asio/use_awaitable.hpp>

#include "base/units.h"
#include "server/api_error.h"

namespace vamp {

namespace asio = boost::asio;

// What a client that was slow has to catch up with is not written all at once.
constexpr size_t kMostEvents = 256;

Generation::Generation(EngineBridge& bridge, const Tokenizer& tokenizer, HttpExchange& exchange,
                       const GenerationRequest& request, const ServerOptions& limits)
    : bridge_(bridge), exchange_(exchange) {
  times_.start = bridge_.now();
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    prompt_tokens_ += static_cast<int>(request.prompts[p].size());
    for (int i = 0; i < request.n; ++i) {
      ChoiceOptions options = request.choice;
      options.parser.seed += choices_.size();
      choices_.push_back({0, std::make_unique<ChoiceText>(tokenizer, options)});
    }
  }
  unfinished_ = choices_.size();
  queue_->events.reserve(choices_.size());
  try {
    submit(request, limits.max_waiting_requests);
  } catch (...) {
    for (const Choice& choice : choices_) bridge_.cancel(choice.id);
    throw;
  }
  exchange_.on_wake([queue = queue_] { queue->wake(); });
  queue_->most_bytes = limits.max_stream_backlog_bytes;
  queue_->overflow = [this] {
    exchange_.cut_off(fmt::format("{} of its stream wait for it, --max-stream-backlog-bytes",
                                  format_bytes(queue_->bytes)));
  };
}

void Generation::submit(const GenerationRequest& request, int max_waiting) {
  for (size_t c = 0; c < choices_.size(); ++c) {
    RequestInput input;
    input.prompt = request.prompts[c / static_cast<size_t>(request.n)];
    input.sampling = request.sampling;
    input.sampling.seed += c % static_cast<size_t>(request.n);
    // One choice of a prompt scores it for all.
    if (c % static_cast<size_t>(request.n) != 0) input.sampling.prompt_logprobs = -1;
    input.priority = request.priority;
    input.cache_salt = request.cache_salt;
    input.reuse = request.reuse;
    switch (bridge_.submit(input, queue_, exchange_.executor(), max_waiting)) {
      case EngineBridge::Submitted::kYes:
        choices_[c].id = input.id;
        break;
      case EngineBridge::Submitted::kQueueFull:
        throw ApiError(503, "too many requests are waiting: try again later", {}, 1);
      case EngineBridge::Submitted::kFailed:
        throw ApiError(500, bridge_.failure());
    }
  }
}

Generation::~Generation() {
  exchange_.on_wake(nullptr);
  queue_->waiter = queue_->overflow = nullptr;
  for (const Choice& choice : choices_) {
    if (!choice.engine_done) bridge_.cancel(choice.id);
  }
}

int Generation::completion_tokens() const {
  int tokens = 0;
  for (const Choice& choice : choices_) tokens += choice.text->tokens();
  return tokens;
}

asio::awaitable<void> Generation::wait() {
  if (!queue_->events.empty() || queue_->lost || exchange_.gone()) co_return;
  // Resumed by whoever calls the waiter, on this thread.
  co_await asio::async_initiate<decltype(asio::use_awaitable), void()>(
      [this](auto handler) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        queue_->waiter = [shared] { std::move (*shared)(); };
      },
      asio::use_awaitable);
}

asio::awaitable<std::vector<std::pair<size_t, ChoiceDelta>>> Generation::next() {
  co_await wait();
  std::vector<std::pair<size_t, ChoiceDelta>> out;
  if (queue_->lost) throw ApiError(500, "out of memory");
  for (const EngineEvent& event : queue_->take(kMostEvents)) take(event, out);
  co_return out;
}

void Generation::take(const EngineEvent& event, std::vector<std::pair<size_t, ChoiceDelta>>& out) {
  const auto found = std::find_if(choices_.begin(), choices_.end(),
                                  [&](const Choice& choice) { return choice.id == event.id; });
  if (found == choices_.end()) return;
  Choice& choice = *found;
  if (event.finished) {
    choice.engine_done = true;
    cached_tokens_ += event.stats.cached_tokens + event.stats.host_cached_tokens;
    times_.queued = std::max(times_.queued.value_or(0), event.stats.queued);
    if (event.reason == FinishReason::kError) {
      error_ = event.error;
      throw ApiError(event.refused ? 400 : 500, event.error);
    }
  } else if (!event.prompt && !times_.first_token) {
    times_.first_token = bridge_.now();
  }
  if (choice.text->finished()) return;
  const auto index = static_cast<size_t>(found - choices_.begin());
  if (out.empty() || out.back().first != index) out.emplace_back(index, ChoiceDelta());
  choice.text->push(event, out.back().second);
  if (!choice.text->finished()) return;
  --unfinished_;
  if (choice.text->stopped_by_text() && !choice.engine_done) {
    bridge_.cancel(choice.id, FinishReason::kStop);
    choice.engine_done = true;
  }
}

}  // namespace vamp
