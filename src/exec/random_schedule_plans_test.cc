// RandomSchedule makes plans.
#include <algorithm>

#include "base/error.h"
#include "exec/random_schedule.h"

namespace vamp {

RandomSchedule::RandomSchedule(Executor& executor, const MemoryLayout& layout,
                               const ScheduleOptions& options, uint64_t seed)
    : executor_(executor),
      layout_(layout),
      options_(options),
      random_(seed),
      mapped_(layout.max_pool_slots(), false),
      groups_out_(layout.min_groups_out) {
  for (int s = 0; s < layout.pool_slots(groups_out_); ++s) mapped_[s] = true;
  for (int h = 0; h < options.host_blocks; ++h) host_free_.insert(h);
  for (int s = 0; s < options.max_running; ++s) free_slots_.insert(s);
  rebuild_free();
}

void RandomSchedule::add(RequestId id, std::vector<TokenId> prompt,
                         const SamplingParams& sampling) {
  Request request;
  request.id = id;
  request.prompt = static_cast<int>(prompt.size());
  request.tokens = std::move(prompt);
  request.sampling = sampling;
  requests_.push_back(std::move(request));
}

std::map<RequestId, std::vector<TokenId>> RandomSchedule::run() {
  while (step()) {
    VAMP_CHECK(counts_.steps < 20000, "the schedule makes no progress");
  }
  std::map<RequestId, std::vector<TokenId>> outputs;
  for (const Request& r : requests_) outputs[r.id] = {r.tokens.begin() + r.prompt, r.tokens.end()};
  return outputs;
}

bool RandomSchedule::step() {
  const bool done =
      std::all_of(requests_.begin(), requests_.end(), [](auto& r) { return r.finished; });
  bool idle = true;
  if (!done) {
    Pending pending;
    StepPlan plan = make_plan(pending);
    ++counts_.steps;
    idle = plan.empty();
    if (!idle) {
      pending_.push_back(std::move(pending));
      executor_.submit(std::move(plan));
    }
  }
  while (executor_.in_flight() > (idle ? 0 : options_.lag)) {
    last_result_ = executor_.wait();
    take(last_result_);
  }
  return !done;
}

std::vector<RandomSchedule::Request*> RandomSchedule::running() {
  std::vector<Request*> result;
  for (Request& r : requests_) {
    if (r.slot >= 0) result.push_back(&r);
  }
  return result;
}

StepPlan RandomSchedule::make_plan(Pending& pending) {
  StepPlan plan;
  plan.step = pending.step = ++step_;
  plan.reset = std::exchange(reset_, false);
  pending.groups_out = groups_out_;
  pending.mapped = mapped_;
  pending.first_key = next_key_;
  if (random_.chance(options_.preempt)) {
    for (Request* r : running()) {
      if (r->unanswered == 0) {
        preempt(*r, random_.chance(0.7));
        break;
      }
    }
  }
  if (random_.chance(options_.move_boundary)) plan_boundary(plan);
  if (random_.chance(options_.move_block)) plan_block_move(plan);
  if (random_.chance(options_.copy)) plan_copy(plan, pending);
  plan.release = std::exchange(to_release_, {});
  for (Request& r : requests_) {
    if (r.slot < 0 && !r.finished && !free_slots_.empty() && random_.chance(0.5))
      plan_start(plan, r);
  }
  for (Request* r : running()) {
    if (random_.chance(options_.work)) plan_work(plan, *r, pending);
  }
  if (options_.random_staging) plan.staging = static_cast<StagingMode>(random_.below(3));
  // Stuck: the one that came first must have the memory of the others.
  if (plan.batch.empty() && random_.chance(0.2)) {
    const std::vector<Request*> all = running();
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i]->unanswered == 0) preempt(*all[i], false);
    }
  }
  if (plan.empty()) {
    const bool copying = std::any_of(cached_.begin(), cached_.end(),
                                     [](auto& c) { return c.second.copies_left > 0; });
    plan.await_copies = copying && pending_.empty();
  }
  return plan;
}

bool RandomSchedule::exists(BlockId block) const {
  const size_t first = block * layout_.block_bytes, last = first + layout_.block_bytes - 1;
  for (size_t byte = std::max(first, layout_.base_pool_bytes); byte <= last;) {
    const size_t slot = (byte - layout_.base_pool_bytes) / layout_.group_bytes();
    if (slot >= mapped_.size() || !mapped_[slot]) return false;
    byte = layout_.base_pool_bytes + (slot + 1) * layout_.group_bytes();
  }
  return true;
}

void RandomSchedule::rebuild_free() {
  free_.clear();
  for (BlockId b = 0; b < layout_.max_blocks(); ++b) {
    if (exists(b) && references_.count(b) == 0) free_.insert(b);
  }
}

// Whether no block that touches it is in use, after forgetting cached ones that do.
bool RandomSchedule::empty_slot(PoolSlot slot) {
  const std::vector<BlockId> blocks = layout_.blocks_touching(slot, mapped_);
  const auto touches = [&](BlockId b) { return std::count(blocks.begin(), blocks.end(), b) > 0; };
  std::vector<size_t> keys;
  for (const auto& [key, cached] : cached_) {
    if (cached.copies_left == 0 &&
        std::any_of(cached.blocks.begin(), cached.blocks.end(), touches)) {
      keys.push_back(key);
    }
  }
  for (size_t key : keys) drop_cached(key);
  return std::all_of(blocks.begin(), blocks.end(), [&](BlockId b) { return free_.count(b) > 0; });
}

void RandomSchedule::plan_boundary(StepPlan& plan) {
  const int target =
      static_cast<int>(random_.between(layout_.min_groups_out, layout_.max_groups_out()));
  const int wanted = layout_.pool_slots(target);
  int mapped = static_cast<int>(std::count(mapped_.begin(), mapped_.end(), true));
  BoundaryMove move;
  move.groups_out = target;
  move.order_version = layout_.order.version;
  std::vector<bool> after = mapped_;
  // From a random place on, so that holes come up anywhere.
  const size_t start = mapped_.empty() ? 0 : random_.below(mapped_.size());
  for (size_t i = 0; i < mapped_.size() && mapped != wanted; ++i) {
    const auto slot = static_cast<PoolSlot>((start + i) % mapped_.size());
    if (mapped < wanted && !mapped_[slot]) {
      move.map_slots.push_back(slot);
      after[slot] = true;
      ++mapped;
    } else if (mapped > wanted && mapped_[slot] && empty_slot(slot)) {
      move.unmap_slots.push_back(slot);
      after[slot] = false;
      --mapped;
    }
  }
  if (mapped != wanted || target == groups_out_) return;
  mapped_ = after;
  groups_out_ = target;
  rebuild_free();
  ++counts_.boundary_moves;
  plan.boundary = std::move(move);
}

void RandomSchedule::plan_block_move(StepPlan& plan) {
  const std::vector<Request*> all = running();
  if (all.empty() || free_.empty()) return;
  const Request& owner = *all[random_.below(all.size())];
  if (owner.blocks.empty()) return;
  const BlockId from = owner.blocks[random_.below(owner.blocks.size())];
  for (auto& [key, cached] : cached_) {
    if (std::count(cached.blocks.begin(), cached.blocks.end(), from) > 0) return;
  }
  const BlockId to = allocate();
  plan.move_blocks.push_back({from, to});
  for (Request* r : all) {
    for (size_t i = 0; i < r->blocks.size(); ++i) {
      if (r->blocks[i] != from) continue;
      r->blocks[i] = to;
      plan.edit_tables.push_back({r->slot, static_cast<int>(i), to});
      if (r != &owner) ++references_[to];
      drop(from);
    }
  }
  ++counts_.block_moves;
}

void RandomSchedule::plan_copy(StepPlan& plan, Pending& pending) {
  if (cached_.empty()) return;
  auto it = cached_.begin();
  std::advance(it, static_cast<ptrdiff_t>(random_.below(cached_.size())));
  auto& [key, cached] = *it;
  if (cached.copies_left > 0) return;
  cached.promoting = cached.blocks.empty();
  const size_t count = std::max(cached.blocks.size(), cached.host.size());
  if (cached.promoting ? free_.size() < count : host_free_.size() < count) return;
  for (size_t i = 0; i < count; ++i) {
    if (cached.promoting) {
      cached.blocks.push_back(allocate());
      plan.promote.push_back({cached.blocks[i], cached.host[i]});
    } else {
      cached.host.push_back(*host_free_.begin());
      host_free_.erase(host_free_.begin());
      plan.demote.push_back({cached.blocks[i], cached.host[i]});
    }
  }
  cached.copies_left = count;
  pending.copying.push_back(key);
}

void RandomSchedule::plan_start(StepPlan& plan, Request& request) {
  StartRequest start;
  start.slot = request.slot = *free_slots_.begin();
  free_slots_.erase(free_slots_.begin());
  request.planned = static_cast<int>(request.tokens.size());
  size_t best = 0;
  const Cached* from = nullptr;
  for (const auto& [key, cached] : cached_) {
    if (!options_.reuse_prefixes || cached.blocks.empty() || cached.promoting) continue;
    const auto end = std::mismatch(request.tokens.begin(), request.tokens.end() - 1,
                                   cached.tokens.begin(), cached.tokens.end());
    const size_t common =
        static_cast<size_t>(end.first - request.tokens.begin()) / layout_.block_tokens;
    if (common > best) {
      best = common;
      from = &cached;
    }
  }
  for (size_t i = 0; i < best; ++i) {
    request.blocks.push_back(from->blocks[i]);
    ++references_[from->blocks[i]];
  }
  counts_.hits += best > 0;
  request.computed = static_cast<int>(best) * layout_.block_tokens;
  start.id = request.id;
  start.tokens = request.tokens;
  start.prompt_tokens = request.prompt;
  start.blocks = request.blocks;
  start.sampling = request.sampling;
  plan.start.push_back(std::move(start));
}

void RandomSchedule::plan_work(StepPlan& plan, Request& request, Pending& pending) {
  if (request.planned - request.prompt >= request.sampling.max_tokens) return;  // all is planned
  BatchEntry entry;
  entry.slot = request.slot;
  entry.first = request.computed;
  const int left = request.planned - request.computed;
  entry.count = options_.whole_chunks
                    ? left
                    : static_cast<int>(random_.between(1, std::min(left, options_.max_chunk)));
  entry.sample = entry.count == left;
  const int end = entry.first + entry.count;
  const size_t needed = (end + layout_.block_tokens - 1) / layout_.block_tokens;
  if (needed > request.blocks.size() && !make_room(needed - request.blocks.size())) return;
  while (request.blocks.size() < needed) {
    entry.new_blocks.push_back(allocate());
    request.blocks.push_back(entry.new_blocks.back());
  }
  request.computed = end;
  request.planned += entry.sample;
  ++request.unanswered;
  pending.slots.push_back(request.slot);
  plan.batch.push_back(std::move(entry));
}

}  // namespace vamp
