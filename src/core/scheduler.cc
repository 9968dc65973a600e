// The way of one step. Running requests first, then waiting ones; no prefill phase and no decode
// phase, only requests with tokens to catch up.
#include "core/scheduler.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "core/scheduler_impl.h"

namespace vamp {
namespace {

// One token is all that it has to catch up with.
bool decodes(const RequestState* request) {
  return request->planned_length() - request->computed == 1 && !request->sampling_planned();
}

}  // namespace

Scheduler::Impl::Impl(const SchedulerConfig& the_config, const MemoryLayout& the_layout,
                      std::unique_ptr<ReclaimPolicy> the_policy, SchedulerListener the_listener)
    : config(the_config),
      layout(the_layout),
      block_tokens(the_layout.block_tokens),
      policy(std::move(the_policy)),
      listener(std::move(the_listener)),
      blocks(the_layout, the_config.host_blocks, the_config.max_ghosts,
             config.kv_events && listener.on_kv_events),
      boundary(the_layout, blocks, the_config.max_groups_out),
      decisions(listener),
      hit_rate(the_config.hit_rate_window),
      waiting(Before{the_config.scheduling}),
      row_of_slot(the_config.max_num_seqs, -1) {
  VAMP_CHECK(policy != nullptr && config.max_num_seqs > 0 && config.max_num_batched_tokens > 0,
             "a scheduler needs a policy, request slots and a token budget");
  for (RequestSlot slot = config.max_num_seqs; slot-- > 0;) free_slots.push_back(slot);
}

StepPlan Scheduler::Impl::schedule(Micros time) {
  VAMP_CHECK(in_flight.size() <= 1, "two plans are unanswered already");
  now = time;
  plan = StepPlan();
  plan.step = sent.step = next_step;
  plan.staging = config.staging;
  sent.groups_before = boundary.groups_out();
  blocks.begin_step(next_step, now);
  budget = config.max_num_batched_tokens;
  preempted_any = held_back = false;
  extra_rows = 0;
  min_remaining = -1;

  drop_expired();
  plan.reset = std::exchange(reset_executor, false);
  plan.release.swap(releases);
  releases.clear();
  run_background();
  move_blocks();
  schedule_running();
  admit_waiting();
  finish_plan();
  return std::move(plan);
}

void Scheduler::Impl::tell_kv_events() {
  if (!blocks.kv_events().empty()) listener.on_kv_events(blocks.kv_events().take());
}

// What nobody waits for: copies ahead of need, and giving memory back to the experts.
void Scheduler::Impl::run_background() {
  const bool may_lower = config.two_way_boundary && boundary_may_move() && !boundary.lowering() &&
                         boundary.groups_out() > layout.min_groups_out;
  const bool may_write_back = blocks.host_capacity() > 0 && blocks.cached_blocks() > 0;
  if (!may_lower && !may_write_back) return;
  BackgroundInputs inputs;
  inputs.step = plan.step;
  inputs.now = now;
  inputs.free_blocks = blocks.free_blocks();
  inputs.cached_blocks = blocks.cached_blocks();
  inputs.total_blocks = blocks.total_blocks();
  inputs.waiting = static_cast<int>(waiting.size());
  inputs.running = static_cast<int>(running.size());
  inputs.host_free_blocks = blocks.host_free_blocks();
  inputs.host_total_blocks = blocks.host_capacity();
  inputs.demote_link_idle = blocks.demotions_in_flight() == 0;
  if (may_write_back && inputs.demote_link_idle) {
    blocks.dirty_runs(config.max_candidates, inputs.dirty);
  }
  boundary.describe(may_lower, inputs.boundary);
  if (may_lower) inputs.blocks_lost = boundary.blocks_lost();

  const BackgroundDecision decision = policy->background(inputs);
  for (uint64_t handle : decision.write_back) {
    blocks.demote(handle, std::numeric_limits<int>::max(), /*evict=*/false, plan);
  }
  if (may_lower && decision.restore_groups > 0) boundary.lower(decision.restore_groups);
}

// The next piece of a lowering of the boundary; tables follow the blocks that it moves.
void Scheduler::Impl::move_blocks() {
  if (!boundary.lowering()) return;
  boundary.continue_lowering(plan);
  if (plan.move_blocks.empty()) return;
  boost::unordered_flat_map<BlockId, BlockId> moved;
  for (const BlockMove& move : plan.move_blocks) moved.emplace(move.from, move.to);
  for (RequestState* request : running) {
    for (int i = 0; i < static_cast<int>(request->table.size()); ++i) {
      const auto to = moved.find(request->table[i]);
      if (to == moved.end()) continue;
      request->table[i] = to->second;
      edits.push_back({{request, request->serial}, i});
    }
  }
}

void Scheduler::Impl::schedule_running() {
  // A long prompt leaves room for those behind it that need one token each, up to half of the
  // budget.
  int decodes_left = static_cast<int>(std::count_if(running.begin(), running.end(), decodes));
  // Only those behind the current one are ever preempted, so the index stays good.
  for (size_t i = 0; i < running.size() && budget > 0; ++i) {
    RequestState& request = *running[i];
    decodes_left -= decodes(&request);
    if (request.sampling_planned() || !arrived(request)) continue;
    const int count =
        most_tokens(request, std::min(request.planned_length() - request.computed,
                                      std::max((budget + 1) / 2, budget - decodes_left)));
    const int short_by =
        blocks_for(request.computed + count) - static_cast<int>(request.table.size());
    if (short_by > 0) {
      if (!make_room(short_by, request, /*admission=*/false)) {
        if (auto reason = out_of_reach(request.computed + count)) {
          finish(request, FinishReason::kError, std::move(*reason));
          preempted_any = true;  // its slot is not given away in this step
          --i;
          continue;
        }
        // Copies under way free enough: wait a step. Else the last one gives way itself.
        if (free_soon() < short_by && i > 0) {
          preempt(request, /*swap=*/false);
          --i;
        }
        continue;
      }
      blocks.allocate(short_by, request.table);
    }
    add_row(request, count);
  }
}

// Has everything come back from the host tier that the request's table counts on?
bool Scheduler::Impl::arrived(RequestState& request) {
  while (request.arrived < request.arriving_end &&
         !blocks.arriving(request.table[request.arrived])) {
    ++request.arrived;
  }
  return request.arrived == request.arriving_end;
}

// Of `count`, how many a request may compute in this step: each one that is scored is a row of
// logits, of which there are as many as request slots. Its own slot's is always left.
int Scheduler::Impl::most_tokens(const RequestState& request, int count) const {
  if (!request.to_score() || request.computed + 1 >= request.stats.prompt_tokens) return count;
  return std::min(count, 1 + static_cast<int>(free_slots.size()) - extra_rows);
}

// `count` more tokens of a request that has the blocks for them.
void Scheduler::Impl::add_row(RequestState& request, int count) {
  BatchEntry& entry = plan.batch.emplace_back();
  entry.slot = request.slot;
  entry.first = request.computed;
  entry.count = count;
  entry.sample = request.computed + count == request.planned_length();
  if (request.to_score())
    entry.scored = std::clamp(request.stats.prompt_tokens - 1 - request.computed, 0, count);
  extra_rows += std::max(0, entry.scored + entry.sample - 1);
  if (request.start_step == 0) {
    request.start_step = plan.step;
    plan.start.push_back({.slot = request.slot,
                          .id = request.input.id,
                          .tokens = request.tokens,
                          .prompt_tokens = request.stats.prompt_tokens,
                          .blocks = request.table,
                          .sampling = request.input.sampling});
  } else {
    entry.new_blocks.assign(request.table.begin() + request.sent_blocks, request.table.end());
  }
  request.sent_blocks = static_cast<int>(request.table.size());

  StepObservation& work = sent.work;
  const bool decode = count == 1 && request.output_planned() > 0;
  if (decode) {
    ++work.decode_requests;
    work.context_tokens += request.computed + 1;
  } else {
    work.prefill_tokens += count;
    work.prefill_context += static_cast<double>(count) * (request.computed + count / 2.0);
  }
  request.computed += count;
  request.last_step = plan.step;
  request.pending += entry.sample;
  budget -= count;
  sent.rows.push_back(
      {{&request, request.serial}, request.slot, entry.sample, entry.first, entry.scored});
  publish_full(request, plan.step, /*may_adopt=*/false);
}

void Scheduler::Impl::finish_plan() {
  for (const Edit& edit : edits) {
    const RequestState& request = *edit.who.request;
    const bool known = edit.who.alive() && request.status == RequestStatus::kRunning &&
                       request.start_step != 0 && request.start_step < plan.step;
    if (known) plan.edit_tables.push_back({request.slot, edit.index, request.table[edit.index]});
  }
  edits.clear();
  // Of requests preempted in this step. Nobody has entered since: their slots are not in use again.
  plan.release.insert(plan.release.end(), releases.begin(), releases.end());
  releases.clear();
  // Copies are reported with a step's result: if none is to come, one must be asked for.
  if (plan.empty() && in_flight.empty() && blocks.copies_in_flight() > 0) plan.await_copies = true;
  if (plan.empty()) return;

  boundary_moves += plan.boundary.has_value();
  sent.moves = plan.move_blocks;
  sent.demotes = plan.demote;
  sent.promotes = plan.promote;
  sent.boundary = plan.boundary;
  sent.work.step = plan.step;
  sent.work.groups_out = boundary.groups_out();
  blocks.sent_step();
  in_flight.push_back(std::move(sent));
  ++next_step;
  sent = SentPlan();
  if (!spare.empty()) {
    sent.rows = std::move(spare.back().rows);
    sent.rows.clear();
    spare.pop_back();
  }
}

SchedulerStats Scheduler::Impl::stats() const {
  SchedulerStats stats;
  stats.running = static_cast<int>(running.size());
  stats.waiting = static_cast<int>(waiting.size());
  stats.free_blocks = blocks.free_blocks();
  stats.cached_blocks = blocks.cached_blocks();
  stats.referenced_blocks = blocks.referenced_blocks();
  stats.total_blocks = blocks.total_blocks();
  stats.host_total_blocks = blocks.host_capacity();
  stats.host_used_blocks = blocks.host_capacity() - blocks.host_free_blocks();
  stats.groups_out = boundary.groups_out();
  stats.hit_rate = hit_rate.rate();
  stats.queried_tokens = queried_tokens;
  stats.hit_tokens = hit_tokens;
  stats.host_hit_tokens = host_hit_tokens;
  stats.recomputed_tokens = recomputed_tokens;
  stats.host_recomputed_tokens = host_recomputed_tokens;
  stats.preemptions = preemptions;
  stats.boundary_moves = boundary_moves;
  stats.decisions = decisions.count();
  stats.failed_steps = failed_steps;
  return stats;
}

void Scheduler::Impl::check_invariants() const {
  std::vector<const BlockTable*> tables;
  std::vector<bool> slot_used(config.max_num_seqs, false);
  for (RequestSlot slot : free_slots) {
    VAMP_CHECK(!slot_used[slot], "slot {} is free twice", slot);
    slot_used[slot] = true;
  }
  for (size_t i = 0; i < running.size(); ++i) {
    const RequestState& request = *running[i];
    VAMP_CHECK(request.status == RequestStatus::kRunning, "request {} is in the wrong list",
               request.input.id);
    VAMP_CHECK(i == 0 || waiting.key_comp()(running[i - 1], running[i]),
               "running requests out of order");
    VAMP_CHECK(!slot_used[request.slot], "slot {} is used twice", request.slot);
    slot_used[request.slot] = true;
    VAMP_CHECK(blocks_for(request.computed) <= static_cast<int>(request.table.size()) &&
                   request.computed <= request.planned_length() && request.pending <= 2,
               "request {} has computed {} of {} tokens in {} blocks", request.input.id,
               request.computed, request.planned_length(), request.table.size());
    VAMP_CHECK(request.published * block_tokens <= request.computed,
               "request {} publishes too much", request.input.id);
    tables.push_back(&request.table);
  }
  VAMP_CHECK(std::all_of(slot_used.begin(), slot_used.end(), [](bool used) { return used; }),
             "a slot is lost");
  for (const RequestState* request : waiting) {
    VAMP_CHECK(request->status == RequestStatus::kWaiting && request->table.empty(),
               "waiting request {} holds blocks", request->input.id);
  }
  VAMP_CHECK(by_id.size() == waiting.size() + running.size(),
             "{} requests known, {} waiting, {} running", by_id.size(), waiting.size(),
             running.size());
  VAMP_CHECK(blocks.total_blocks() <= boundary.max_blocks(), "more blocks than memory");
  blocks.check_invariants(tables);
}

Scheduler::Scheduler(const SchedulerConfig& config, const MemoryLayout& layout,
                     std::unique_ptr<ReclaimPolicy> policy, SchedulerListener listener)
    : impl_(std::make_unique<Impl>(config, layout, std::move(policy), std::move(listener))) {}
Scheduler::~Scheduler() = default;

std::optional<std::string> Scheduler::add(RequestInput request, Micros now) {
  return impl_->add(std::move(request), now);
}
void Scheduler::cancel(RequestId id, Micros now) {
  const auto it = impl_->by_id.find(id);
  impl_->now = now;
  if (it != impl_->by_id.end()) impl_->finish(*it->second, FinishReason::kCancelled);
}
StepPlan Scheduler::schedule(Micros now) {
  StepPlan plan = impl_->schedule(now);
  impl_->tell_kv_events();
  return plan;
}
void Scheduler::update(const StepResult& result, Micros now) {
  impl_->update(result, now);
  impl_->tell_kv_events();
}
std::vector<RequestEvent> Scheduler::take_events() {
  return std::exchange(impl_->events, {});
}

bool Scheduler::idle() const {
  return impl_->by_id.empty() && impl_->in_flight.empty() && impl_->blocks.copies_in_flight() == 0;
}
Micros Scheduler::next_wakeup() const {
  Micros wakeup = std::numeric_limits<Micros>::infinity();
  if (!impl_->deadlines.empty()) wakeup = impl_->deadlines.top().time;
  if (impl_->held_back) wakeup = std::min(wakeup, impl_->now + impl_->config.hold_recheck);
  if (!impl_->by_id.empty() && !impl_->boundary_may_move()) {
    wakeup = std::min(wakeup, impl_->boundary_barred_until);
  }
  return wakeup;
}
SchedulerStats Scheduler::stats() const {
  return impl_->stats();
}
void Scheduler::reset_prefix_cache() {
  impl_->blocks.reset_cache();
}
std::vector<PrefixKey> Scheduler::cached_keys(CacheTier tier) const {
  return impl_->blocks.cached_keys(tier);
}
void Scheduler::check_invariants() const {
  impl_->check_invariants();
}

}  // namespace vamp
