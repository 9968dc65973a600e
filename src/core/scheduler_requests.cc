// Requests come, finish, are cancelled, run out of time.
#include <algorithm>

#include "base/error.h"
#include "core/request_check.h"
#include "core/scheduler_impl.h"

namespace vamp {
namespace {

// Requests without a session of their own get one that no application can name.
constexpr SessionId kOwnSession = SessionId{1} << 63;

std::span<const TokenId> content(const RequestState& request, size_t block, int block_tokens) {
  const auto size = static_cast<size_t>(block_tokens);
  return std::span(request.tokens).subspan(block * size, size);
}

}  // namespace

// Why the request can never run, if so.
std::optional<std::string> Scheduler::Impl::refuse(const RequestInput& input) const {
  const auto prompt = static_cast<int64_t>(input.prompt.size());
  const int64_t length = prompt + input.sampling.max_tokens;
  const int64_t capacity = int64_t{boundary.max_blocks()} * block_tokens;
  if (auto reason = validate_request(input, config.limits)) return reason;
  if (by_id.contains(input.id)) return fmt::format("request {} exists already", input.id);
  if (config.max_model_len > 0 && length > config.max_model_len) {
    return fmt::format(
        "{} prompt tokens and {} output tokens exceed the maximum length of {}: shorten the "
        "prompt or lower max_tokens",
        prompt, input.sampling.max_tokens, config.max_model_len);
  }
  // The last token sampled needs no place in the cache.
  if (length - 1 > capacity) {
    return fmt::format(
        "{} prompt tokens and {} output tokens can never fit: the KV pool holds at most {} "
        "tokens; shorten the prompt, lower max_tokens or raise the memory budget",
        prompt, input.sampling.max_tokens, capacity);
  }
  if (auto reason = out_of_reach(prompt)) return reason;
  if (config.max_waiting > 0 && static_cast<int>(waiting.size()) >= config.max_waiting) {
    return fmt::format("{} requests are waiting already, the most that max_waiting allows",
                       waiting.size());
  }
  return std::nullopt;
}

std::optional<std::string> Scheduler::Impl::add(RequestInput input, Micros time) {
  now = time;
  if (auto reason = refuse(input)) return reason;
  if (unused.empty()) {
    storage.push_back(std::make_unique<RequestState>());
    unused.push_back(storage.back().get());
  }
  RequestState& request = *unused.back();
  unused.pop_back();
  request = RequestState();
  request.serial = next_serial++;
  request.status = RequestStatus::kWaiting;
  request.tokens = std::move(input.prompt);
  request.input = std::move(input);
  request.waiting_since = now;
  add_end_tokens(request.input.sampling);
  if (config.enable_prefix_caching) name_blocks(request);
  request.session = request.input.reuse.session;
  if (request.session == 0) {
    const int known = blocks.match(request.keys, static_cast<int>(request.keys.size())).total();
    if (known > 0) request.session = blocks.session_of(request.keys[known - 1]);
  }
  if (request.session == 0) request.session = kOwnSession | request.input.id;

  RequestStats& stats = request.stats;
  stats.id = request.input.id;
  stats.session = request.session;
  stats.prompt_tokens = static_cast<int>(request.tokens.size());
  stats.arrival = request.input.arrival;
  stats.first_scheduled = stats.first_token = -1;
  by_id.emplace(request.input.id, &request);
  waiting.insert(&request);
  if (request.input.deadline < std::numeric_limits<Micros>::infinity()) {
    deadlines.push({request.input.deadline, {&request, request.serial}});
  }
  policy->on_turn_started(request.session, stats.prompt_tokens, now);
  return std::nullopt;
}

// From here on the model's end tokens are stop tokens like any: what min_tokens puts off and what
// ends a grammar's output.
void Scheduler::Impl::add_end_tokens(SamplingParams& sampling) const {
  if (sampling.ignore_eos) return;
  std::vector<TokenId>& stops = sampling.stop_token_ids;
  for (const TokenId token : config.eos_token_ids) {
    if (std::find(stops.begin(), stops.end(), token) == stops.end()) stops.push_back(token);
  }
}

// Keys for all full blocks of the known tokens.
void Scheduler::Impl::name_blocks(RequestState& request) {
  const size_t full = request.tokens.size() / block_tokens;
  // Only once: reserving one more each time would copy them all each time.
  if (request.keys.empty()) request.keys.reserve(full);
  while (request.keys.size() < full) {
    const PrefixKey parent =
        request.keys.empty() ? root_key(request.input.cache_salt) : request.keys.back();
    request.keys.push_back(child_key(parent, content(request, request.keys.size(), block_tokens)));
  }
}

// Names the blocks that are full of known tokens. Tokens of plans under way are not known yet, so
// neither are their blocks.
void Scheduler::Impl::publish_full(RequestState& request, StepId written, bool may_adopt,
                                   bool leaving) {
  if (!config.enable_prefix_caching) return;
  const int full =
      std::min(request.computed, static_cast<int>(request.tokens.size())) / block_tokens;
  if (full <= request.published) return;
  name_blocks(request);
  for (int i = request.published; i < full; ++i) {
    const auto tokens = content(request, static_cast<size_t>(i), block_tokens);
    const auto published =
        blocks.publish(request.table, i, request.keys[i], tokens, written, may_adopt);
    if (published == BlockManager::Published::kNotYet) return;
    if (published == BlockManager::Published::kAdopted && !leaving) {
      edits.push_back({{&request, request.serial}, i});
    }
    request.published = i + 1;
  }
}

// Out of the running ones: its slot is free, its blocks are its own until it gives them back.
void Scheduler::Impl::leave_running(RequestState& request) {
  const auto it = std::lower_bound(running.begin(), running.end(), &request, waiting.key_comp());
  VAMP_CHECK(it != running.end() && *it == &request, "request {} does not run", request.input.id);
  running.erase(it);
  free_slots.push_back(request.slot);
  if (request.start_step != 0) releases.push_back(request.slot);
  publish_full(request, request.last_step, /*may_adopt=*/true, /*leaving=*/true);
}

void Scheduler::Impl::finish(RequestState& request, FinishReason reason, std::string error) {
  const bool was_running = request.status == RequestStatus::kRunning;
  if (was_running) {
    leave_running(request);
    const int arriving_from = arrived(request) ? std::numeric_limits<int>::max() : request.arrived;
    const RunId run = blocks.release(request.table, arriving_from, request.session,
                                     request.input.reuse.release || reason == FinishReason::kError);
    // Whatever broke its computation must not be handed to others.
    if (reason == FinishReason::kError && run != kNoId) blocks.drop_run(run);
  } else {
    waiting.erase(&request);
    if (request.swapped != kNoId) blocks.discard_swapped(request.swapped);
  }
  end_wait(request);
  RequestStats& stats = request.stats;
  stats.output_tokens = static_cast<int>(request.tokens.size()) - stats.prompt_tokens;
  stats.finished = now;
  stats.reason = reason;
  if (!was_running) stats.queued += now - request.waiting_since;
  events.push_back({.id = request.input.id,
                    .kind = RequestEvent::Kind::kFinished,
                    .top_logprobs = {},
                    .reason = reason,
                    .error = std::move(error)});
  policy->on_turn_ended(request.session, stats, request.input.reuse, now);
  if (listener.on_finished) listener.on_finished(stats);
  by_id.erase(request.input.id);
  request.status = RequestStatus::kUnused;
  unused.push_back(&request);
}

void Scheduler::Impl::drop_expired() {
  while (!deadlines.empty() && (!deadlines.top().who.alive() || deadlines.top().time <= now)) {
    const Reference who = deadlines.top().who;
    deadlines.pop();
    if (who.alive()) finish(*who.request, FinishReason::kDeadline);
  }
}

}  // namespace vamp
