// Waiting requests enter.
//
// In order of arrival (or priority). One that does not fit lets others pass, but no more than
// max_overtakes of them and no longer than max_overtaken_for: then nobody behind it enters before
// it does, and as running requests finish it comes to fit. Waiting requests never preempt running
// ones.
//
// One prompt asked for many times, or many that begin alike, are computed once: while a running
// request has yet to compute the next block that a waiting one needs, that one waits.
#include <algorithm>

#include "base/error.h"
#include "core/scheduler_impl.h"

namespace vamp {
namespace {

// Waiting requests looked at in one step: the queue may be long, the step must not.
constexpr int kMaxLookedAt = 256;

}  // namespace

void Scheduler::Impl::admit_waiting() {
  if (preempted_any) return;
  passed.clear();
  int looked_at = 0;
  for (auto it = waiting.begin();
       it != waiting.end() && budget > 0 && static_cast<int>(free_slots.size()) > extra_rows;) {
    if (++looked_at > kMaxLookedAt) return;
    RequestState& request = **it;
    ++it;
    switch (try_admit(request)) {
      case Admission::kNotYet:
        break;
      case Admission::kNoRoom:
        if (request.unfit_since < 0) request.unfit_since = now;
        passed.push_back(&request);
        if (static_cast<int>(passed.size()) >= config.max_admission_attempts) return;
        break;
      case Admission::kAdmitted:
        for (RequestState* other : passed) ++other->overtaken;
        break;
    }
    const auto blocks_all = [&](const RequestState* other) { return blocks_others(*other); };
    if (std::any_of(passed.begin(), passed.end(), blocks_all)) return;
  }
}

bool Scheduler::Impl::blocks_others(const RequestState& request) const {
  return request.overtaken >= config.max_overtakes ||
         now - request.unfit_since >= config.max_overtaken_for;
}

Scheduler::Impl::Admission Scheduler::Impl::try_admit(RequestState& request) {
  // A plan under way still samples for it, or its last block is still on its way to the host.
  if (request.pending > 0) return Admission::kNotYet;
  if (request.swapped != kNoId && !blocks.swapped_out(request.swapped)) return Admission::kNotYet;

  const int length = static_cast<int>(request.tokens.size());
  if (auto reason = out_of_reach(length)) {
    finish(request, FinishReason::kError, std::move(*reason));
    return Admission::kNotYet;
  }
  // At least one token is computed, for its logits.
  if (config.enable_prefix_caching) name_blocks(request);
  const int most = request.to_score() ? 0 : (length - 1) / block_tokens;
  const PrefixMatch match = blocks.match(request.keys, most);
  // Somebody computes the next block right now, or is about to: then it can be shared.
  if (match.being_computed) return Admission::kNotYet;
  if (match.total() < most && will_be_computed(request, match.total())) return Admission::kNotYet;
  if (match.total() == 0 && !request.admitted_before && !running.empty() &&
      policy->hold_new_session(request.session, request.stats.prompt_tokens, now)) {
    held_back = true;
    return Admission::kNotYet;
  }

  // Content in the host tier and tokens to compute both need a free block.
  int start = match.total() * block_tokens;
  const int end =
      config.admission == AdmissionRule::kWholePrompt ? length : std::min(length, start + budget);
  const int needed = blocks_for(end) - match.device_blocks;
  if (!worth_another_attempt(request, match.total())) return Admission::kNoRoom;
  blocks.hold(request.keys, match, request.table);
  if (!within_admission_limit(needed) || !make_room(needed, request, /*admission=*/true)) {
    blocks.let_go(request.keys, match, request.table, request.session);
    request.no_room = {now, free_soon() + blocks.cached_blocks(), match.total()};
    return Admission::kNoRoom;
  }
  blocks.promote(request.keys, match, request.table, plan);
  if (request.swapped != kNoId) {
    if (!request.to_score() && request.swapped_tokens / block_tokens == match.total()) {
      blocks.swap_in(request.swapped, request.table, plan);
      start = request.swapped_tokens;
    } else {
      blocks.discard_swapped(request.swapped);
    }
    request.swapped = kNoId;
  }
  request.arriving_end = static_cast<int>(request.table.size());
  const int missing = blocks_for(end) - static_cast<int>(request.table.size());
  if (missing > 0) blocks.allocate(missing, request.table);
  enter(request, match, start);
  return Admission::kAdmitted;
}

bool Scheduler::Impl::within_admission_limit(int needed) const {
  const std::optional<int> limit = policy->admission_limit(boundary.groups_out(), now);
  const int held = blocks.total_blocks() - free_soon() - blocks.cached_blocks();
  return !limit || running.empty() || held + needed <= *limit;
}

bool Scheduler::Impl::worth_another_attempt(const RequestState& request, int matched) const {
  const RequestState::Attempt& last = request.no_room;
  return last.at < 0 || running.empty() || now - last.at >= config.admission_retry ||
         matched > last.matched || free_soon() + blocks.cached_blocks() > last.available;
}

// Whether a running request has yet to compute the same content as block `block` of `request`:
// waiting for it costs less than computing it twice. It runs, so it gets there or leaves; it never
// waits for a waiting one.
bool Scheduler::Impl::will_be_computed(const RequestState& request, int block) const {
  const auto index = static_cast<size_t>(block);
  if (index >= request.keys.size()) return false;
  return std::any_of(running.begin(), running.end(), [&](const RequestState* other) {
    return other->published <= block && index < other->keys.size() &&
           other->keys[index] == request.keys[index];
  });
}

// The request has its blocks: it runs from now on.
void Scheduler::Impl::enter(RequestState& request, const PrefixMatch& match, int start) {
  waiting.erase(&request);
  end_wait(request);
  request.status = RequestStatus::kRunning;
  request.slot = free_slots.back();
  free_slots.pop_back();
  request.start_step = 0;
  request.sent_blocks = 0;
  request.arrived = 0;
  request.computed = start;
  request.published = match.total();
  request.overtaken = 0;
  request.unfit_since = -1;
  request.no_room = {};
  running.insert(std::lower_bound(running.begin(), running.end(), &request, waiting.key_comp()),
                 &request);

  RequestStats& stats = request.stats;
  stats.queued += now - request.waiting_since;
  if (request.preempted) policy->on_rescheduled(request.waiting_since, now);
  request.preempted = false;
  if (!request.to_score()) charge_ghosts(request, match.total());
  if (!request.admitted_before) {
    request.admitted_before = true;
    stats.first_scheduled = now;
    policy->on_turn_scheduled(request.session, stats.prompt_tokens, match.total() * block_tokens,
                              now);
    stats.cached_tokens = match.device_blocks * block_tokens;
    stats.host_cached_tokens = match.host_blocks * block_tokens;
    hit_rate.add(stats.prompt_tokens, start);
    queried_tokens += static_cast<uint64_t>(stats.prompt_tokens);
    hit_tokens += static_cast<uint64_t>(stats.cached_tokens);
    host_hit_tokens += static_cast<uint64_t>(stats.host_cached_tokens);
  }
  if (arrived(request)) {
    const int room = static_cast<int>(request.table.size()) * block_tokens - request.computed;
    const int count = std::min({request.planned_length() - request.computed, budget, room});
    add_row(request, most_tokens(request, count));
  }
}

// What the request must compute although it was once there: somebody decided to drop it.
void Scheduler::Impl::charge_ghosts(RequestState& request, int matched_blocks) {
  GhostList& ghosts = blocks.ghosts();
  if (ghosts.empty()) return;
  uint64_t decision = 0;
  int tokens = 0;
  Micros dropped = 0;
  const auto charge = [&] {
    if (tokens == 0) return;
    (decision == 0 ? host_recomputed_tokens : recomputed_tokens) += static_cast<uint64_t>(tokens);
    decisions.reused(decision, tokens, now);
    policy->on_evicted_reused(decision, tokens, now - dropped);
    tokens = 0;
  };
  for (size_t i = static_cast<size_t>(matched_blocks); i < request.keys.size(); ++i) {
    const std::optional<Ghost> ghost = ghosts.take(request.keys[i]);
    if (!ghost) continue;
    if (ghost->decision != decision) charge();
    decision = ghost->decision;
    dropped = ghost->dropped;
    tokens += block_tokens;
  }
  charge();
}

}  // namespace vamp
