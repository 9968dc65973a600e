// Results: tokens, copies, what the policy learns, and steps that were not carried out.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "core/scheduler_impl.h"

namespace vamp {
namespace {

constexpr const char* kInvalid =
    "no token could be sampled: the logits are not numbers (NaN), or the output's grammar has "
    "failed (see the log)";

}  // namespace

void Scheduler::Impl::update(const StepResult& result, Micros time) {
  now = time;
  VAMP_CHECK(!in_flight.empty() && in_flight.front().step == result.step,
             "a result of step {} came out of order", result.step);
  SentPlan answered = std::move(in_flight.front());
  in_flight.pop_front();
  blocks.set_answered(result.step);
  for (const BlockCopy& copy : result.demoted) blocks.demoted(copy);
  for (const BlockCopy& copy : result.promoted) blocks.promoted(copy);

  if (!result.executed) {
    ++failed_steps;
    if (!answered.undone) {
      in_flight.push_front(std::move(answered));
      undo_plans_since(result);
      in_flight.pop_front();
    }
    return;
  }
  VAMP_CHECK(!answered.undone, "step {} was carried out after one that was not", result.step);
  if (answered.boundary) boundary_failures = 0;
  take_samples(answered, result);
  observe(answered, result);
  spare.push_back(std::move(answered));
}

void Scheduler::Impl::take_samples(const SentPlan& step, const StepResult& result) {
  for (size_t i = 0; i < step.rows.size(); ++i)
    row_of_slot[step.rows[i].slot] = static_cast<int>(i);
  size_t expected = 0, scored = 0;
  for (const Row& row : step.rows) {
    expected += row.sample;
    scored += static_cast<size_t>(row.scored);
  }
  VAMP_CHECK(result.tokens.size() == expected && result.scored.size() == scored,
             "step {} sampled {} tokens and scored {}, its plan {} and {}", result.step,
             result.tokens.size(), result.scored.size(), expected, scored);
  auto score = result.scored.begin();
  for (const Row& row : step.rows) {
    for (int i = 0; i < row.scored; ++i, ++score) {
      if (row.who.alive()) append_score(*row.who.request, row.first + 1 + i, *score);
    }
  }
  for (const SampledToken& sample : result.tokens) {
    const Row& row = step.rows[row_of_slot[sample.slot]];
    VAMP_CHECK(row.slot == sample.slot && row.sample, "slot {} sampled unasked", sample.slot);
    // A surplus row: the request ended while this step was under way.
    if (!row.who.alive()) continue;
    append(*row.who.request, sample);
  }
}

// `position`: of the prompt's token. After a preemption they come again.
void Scheduler::Impl::append_score(RequestState& request, int position, const SampledToken& score) {
  if (position <= request.scored) return;
  VAMP_CHECK(position == request.scored + 1, "request {}: token {} is scored after token {}",
             request.input.id, position, request.scored);
  if (score.invalid) return finish(request, FinishReason::kError, kInvalid);
  request.scored = position;
  events.push_back({.id = request.input.id,
                    .kind = RequestEvent::Kind::kPromptToken,
                    .token = request.tokens[static_cast<size_t>(position)],
                    .logprob = score.logprob,
                    .top_logprobs = score.top_logprobs,
                    .error = {}});
}

void Scheduler::Impl::append(RequestState& request, const SampledToken& sample) {
  --request.pending;
  if (sample.invalid) return finish(request, FinishReason::kError, kInvalid);
  request.tokens.push_back(sample.token);
  if (request.stats.first_token < 0) request.stats.first_token = now;
  events.push_back({.id = request.input.id,
                    .token = sample.token,
                    .logprob = sample.logprob,
                    .top_logprobs = sample.top_logprobs,
                    .error = {}});

  const SamplingParams& sampling = request.input.sampling;
  const int output = static_cast<int>(request.tokens.size()) - request.stats.prompt_tokens;
  const std::vector<TokenId>& stops = sampling.stop_token_ids;  // the model's end tokens among them
  if (output >= sampling.min_tokens &&
      std::find(stops.begin(), stops.end(), sample.token) != stops.end()) {
    finish(request, FinishReason::kStop);
  } else if (output >= sampling.max_tokens) {
    finish(request, FinishReason::kLength);
  } else if (request.status == RequestStatus::kRunning) {
    publish_full(request, request.last_step, /*may_adopt=*/true);
  }
}

void Scheduler::Impl::observe(const SentPlan& step, const StepResult& result) {
  StepObservation seen = step.work;
  seen.now = now;
  seen.duration = result.end - result.start;
  seen.staging = result.staging;
  seen.demoted_bytes = result.demoted.size() * layout.block_bytes;
  seen.promoted_bytes = result.promoted.size() * layout.block_bytes;
  seen.demote_us = result.demote_us;
  seen.promote_us = result.promote_us;
  if (!result.expert_counts.empty()) seen.expert_counts = &result.expert_counts;
  seen.running = static_cast<int>(running.size());
  seen.waiting = static_cast<int>(waiting.size());
  policy->observe(seen);
}

// Plans from `step` on did nothing: everybody starts again from what is known, and the cache
// forgets what they would have computed.
void Scheduler::Impl::undo_plans_since(const StepResult& failed) {
  const StepId step = failed.step;
  if (in_flight.front().boundary) bar_boundary(failed);
  boundary.cancel_lowering();
  while (!running.empty()) {
    RequestState& request = *running.back();
    running.pop_back();
    free_slots.push_back(request.slot);
    blocks.release(request.table,
                   arrived(request) ? std::numeric_limits<int>::max() : request.arrived,
                   request.session, false);
    requeue(request);
  }
  for (const SentPlan& lost : in_flight) {
    for (const Row& row : lost.rows) {
      if (row.sample && row.who.alive()) --row.who.request->pending;
    }
  }
  for (RequestState* request : waiting) {
    if (request->swapped != kNoId && request->swap_step >= step) request->swapped = kNoId;
  }
  for (auto lost = in_flight.rbegin(); lost != in_flight.rend(); ++lost) {
    blocks.undo_copies(lost->demotes, lost->promotes);
  }
  blocks.forget_written_since(step);
  for (auto lost = in_flight.rbegin(); lost != in_flight.rend(); ++lost) {
    blocks.undo_moves(lost->moves);
    if (lost->boundary) {
      boundary.undo(*lost->boundary, lost->groups_before);
    }
    lost->undone = true;
  }
  releases.clear();
  edits.clear();
  reset_executor = true;
}

// A boundary move failed: not again for a while, and much longer when it fails again and again.
void Scheduler::Impl::bar_boundary(const StepResult& failed) {
  ++boundary_failures;
  boundary_failure = failed.failure;
  const bool immovable = boundary_failures >= config.max_boundary_failures;
  boundary_barred_until = now + (immovable ? config.boundary_cooling : config.boundary_backoff);
}

// A request that ran waits again; it has given its blocks back.
void Scheduler::Impl::requeue(RequestState& request) {
  request.status = RequestStatus::kWaiting;
  request.slot = -1;
  request.start_step = 0;
  request.computed = request.published = request.sent_blocks = 0;
  request.arrived = request.arriving_end = 0;
  request.waiting_since = now;
  waiting.insert(&request);
}

}  // namespace vamp
