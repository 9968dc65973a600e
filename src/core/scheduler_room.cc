// Blocks fall short: ask the policy which way out is the cheapest, carry it out, ask again.
#include <algorithm>

#include "base/error.h"
#include "core/scheduler_impl.h"

namespace vamp {
namespace {

// Victims shown to the policy at once; it is asked again if it needs more.
constexpr size_t kMaxVictims = 8;

}  // namespace

// True when `needed` blocks are free. For a running request (not `admission`) those behind it may
// be preempted. What is on its way to the host counts as won: whoever needs it waits for its copy.
bool Scheduler::Impl::make_room(int needed, RequestState& request, bool admission) {
  if (blocks.free_blocks() >= needed) return true;
  // Memory on its way back to the experts is needed here, unless cached blocks will do.
  if (free_soon() + blocks.cached_blocks() < needed) boundary.cancel_lowering();
  while (free_soon() < needed) {
    gather(needed, request, admission, record.inputs);
    record.id = record.inputs.decision;
    record.decision = policy->choose(record.inputs);
    const bool waits = admission && record.decision.only_waits();
    if (waits && decisions.repeated(request.wait_decision, now)) break;
    end_wait(request);
    record.blocks_won = carry_out(record.inputs, record.decision, request, record.id);
    decisions.made(record);
    if (waits) request.wait_decision = record.id;
    if (admission && record.decision.wait) break;
    if (record.blocks_won <= 0) break;
  }
  // The policy's answers do not help. Where nobody else could ever free the blocks, they must be
  // found.
  if (free_soon() < needed && (!admission || running.empty())) {
    gather(needed, request, admission, record.inputs);
    record.id = record.inputs.decision;
    record.decision = {};
    record.decision.note = "forced: the policy's answers left nobody who could free the blocks";
    record.blocks_won = force_room(needed, request, admission, record.id);
    decisions.made(record);
  }
  return blocks.free_blocks() >= needed;
}

// The latest "wait" was the last of its kind.
void Scheduler::Impl::end_wait(RequestState& request) {
  decisions.ended(std::exchange(request.wait_decision, 0));
}

void Scheduler::Impl::gather(int needed, const RequestState& request, bool admission,
                             ReclaimInputs& inputs) {
  inputs.decision = decisions.next_id();
  inputs.step = plan.step;
  inputs.now = now;
  inputs.gap_blocks = needed - free_soon();
  inputs.needed_blocks = needed;
  inputs.admission = admission;
  inputs.request = request.input.id;
  inputs.request_uncached_tokens = admission
                                       ? static_cast<int>(request.tokens.size()) -
                                             static_cast<int>(request.table.size()) * block_tokens
                                       : 0;
  inputs.block_tokens = block_tokens;
  inputs.free_blocks = blocks.free_blocks();
  inputs.cached_blocks = blocks.cached_blocks();
  inputs.total_blocks = blocks.total_blocks();
  inputs.host_free_blocks = blocks.host_free_blocks();
  inputs.host_total_blocks = blocks.host_capacity();
  blocks.candidates(config.max_candidates, std::max(inputs.gap_blocks, config.min_segment_blocks),
                    inputs.evictable);
  boundary.describe(boundary_may_move(), inputs.boundary);
  inputs.victims.clear();
  if (!admission) {
    for (size_t i = running.size();
         i-- > 0 && running[i] != &request && inputs.victims.size() < kMaxVictims;) {
      const RequestState& candidate = *running[i];
      inputs.victims.push_back(
          {.id = candidate.input.id,
           .context_tokens = candidate.computed,
           .partial_tokens = candidate.computed % block_tokens,
           .uncached_blocks = static_cast<int>(candidate.table.size()) - candidate.published,
           .total_blocks = blocks.unshared_blocks(candidate.table),
           .priority = candidate.input.priority,
           .arrival = candidate.input.arrival});
    }
  }
  inputs.running = static_cast<int>(running.size());
  inputs.waiting = static_cast<int>(waiting.size());
  if (min_remaining < 0) {
    min_remaining = std::numeric_limits<int>::max();
    for (const RequestState* other : running) {
      min_remaining =
          std::min(min_remaining, other->input.sampling.max_tokens - other->output_planned());
    }
    if (running.empty()) min_remaining = 0;
  }
  inputs.min_remaining_tokens = min_remaining;
  inputs.num_behind = std::max(inputs.waiting - 1, 0);
  inputs.hit_rate = hit_rate.rate();
}

// Why nobody can ever get blocks for so many tokens, if so: the pool as it is does not hold them,
// and the boundary cannot move.
std::optional<std::string> Scheduler::Impl::out_of_reach(int64_t tokens) const {
  const int64_t capacity = int64_t{blocks.total_blocks()} * block_tokens;
  if (!boundary_immovable() || tokens <= capacity) return std::nullopt;
  return fmt::format(
      "{} tokens do not fit: the KV pool holds {}, and the boundary could not be moved to make it "
      "larger ({} failures in a row, the last: {}); shorten the prompt, lower max_tokens or raise "
      "the memory budget",
      tokens, capacity, boundary_failures,
      boundary_failure.empty() ? "no reason given" : boundary_failure);
}

// Returns how many more blocks are free, or will be when their copies have ended.
int Scheduler::Impl::carry_out(const ReclaimInputs& inputs, const ReclaimDecision& decision,
                               const RequestState& request, uint64_t id) {
  const int before = free_soon();
  const auto segment = [&](uint64_t handle) {
    for (const EvictionCandidate& candidate : inputs.evictable) {
      if (candidate.handle == handle) return candidate.blocks;
    }
    return 0;
  };
  int left = decision.drop_blocks;
  for (uint64_t handle : decision.drop)
    left -= blocks.drop(handle, std::min(segment(handle), left), id);
  if (left > 0) blocks.drop_coldest(left, id);
  for (uint64_t handle : decision.demote)
    blocks.demote(handle, segment(handle), /*evict=*/true, plan);
  if (decision.give_up_groups > 0 && boundary_may_move())
    boundary.raise(decision.give_up_groups, plan);
  if (!inputs.admission) {
    for (RequestId victim_id : decision.preempt_swap) {
      if (RequestState* chosen = victim(victim_id, request)) preempt(*chosen, /*swap=*/true);
    }
    for (RequestId victim_id : decision.preempt_recompute) {
      if (RequestState* chosen = victim(victim_id, request)) preempt(*chosen, /*swap=*/false);
    }
  }
  return free_soon() - before;
}

// The running request with this id, if it comes after `behind`: those before it never give way.
RequestState* Scheduler::Impl::victim(RequestId id, const RequestState& behind) const {
  const auto it = by_id.find(id);
  if (it == by_id.end() || it->second->status != RequestStatus::kRunning) return nullptr;
  return waiting.key_comp()(&behind, it->second) ? it->second : nullptr;
}

// In the order of a static engine, then more memory: what is certain to help. Returns the blocks
// won.
int Scheduler::Impl::force_room(int needed, const RequestState& request, bool admission,
                                uint64_t id) {
  const int before = free_soon();
  const auto gap = [&] { return needed - free_soon(); };
  blocks.drop_coldest(gap(), id);
  while (!admission && gap() > 0 && !running.empty() && running.back() != &request) {
    preempt(*running.back(), /*swap=*/false);
    blocks.drop_coldest(gap(), id);
  }
  while (gap() > 0 && boundary_may_move()) {
    const int groups_before = boundary.groups_out();
    boundary.raise(layout.increment_groups, plan);
    if (boundary.groups_out() == groups_before) break;
  }
  return free_soon() - before;
}

// Back into the queue. Its full blocks stay cached; with `swap` they and the partly filled one go
// to the host tier, as far as there is room.
void Scheduler::Impl::preempt(RequestState& request, bool swap) {
  leave_running(request);
  const bool complete = arrived(request);
  if (complete)
    blocks.trim(request.table, std::max(blocks_for(request.computed), request.published));
  request.swapped = kNoId;
  if (swap && complete && request.computed % block_tokens != 0 &&
      static_cast<int>(request.table.size()) == request.published + 1) {
    request.swapped = blocks.swap_out_last(request.table, plan);
    request.swapped_tokens = request.computed;
    request.swap_step = plan.step;
  }
  const RunId run =
      blocks.release(request.table, complete ? std::numeric_limits<int>::max() : request.arrived,
                     request.session, false);
  if (swap) blocks.demote_run(run, /*evict=*/true, plan);
  requeue(request);
  ++request.stats.preemptions;
  ++preemptions;
  request.preempted = true;
  preempted_any = true;
}

}  // namespace vamp
