#include "exec/random_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "exec/request_table.h"

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

void RandomSchedule::preempt(Request& request, bool keep_blocks) {
  ++counts_.preemptions;
  leave(request, keep_blocks);
}

// Its slot is free for a request that starts in the plan that releases it.
void RandomSchedule::leave(Request& request, bool keep_blocks) {
  const size_t full = static_cast<size_t>(request.computed / layout_.block_tokens);
  if (keep_blocks && full > 0) {
    Cached& cached = cached_[next_key_++];
    cached.tokens.assign(
        request.tokens.begin(),
        request.tokens.begin() + static_cast<ptrdiff_t>(full) * layout_.block_tokens);
    cached.blocks.assign(request.blocks.begin(),
                         request.blocks.begin() + static_cast<ptrdiff_t>(full));
    for (BlockId b : cached.blocks) ++references_[b];
  }
  for (BlockId b : request.blocks) drop(b);
  request.blocks.clear();
  to_release_.push_back(request.slot);
  free_slots_.insert(request.slot);
  request.slot = -1;
  request.planned = request.computed = 0;
}

bool RandomSchedule::make_room(size_t blocks) {
  while (free_.size() < blocks) {
    const auto victim = std::find_if(cached_.begin(), cached_.end(), [](auto& c) {
      return c.second.copies_left == 0 && !c.second.blocks.empty();
    });
    if (victim == cached_.end()) return false;
    drop_cached(victim->first);
  }
  return true;
}

BlockId RandomSchedule::allocate() {
  auto it = free_.begin();
  std::advance(it, static_cast<ptrdiff_t>(random_.below(std::min<size_t>(free_.size(), 8))));
  const BlockId block = *it;
  free_.erase(it);
  references_[block] = 1;
  return block;
}

void RandomSchedule::drop(BlockId block) {
  if (--references_.at(block) > 0) return;
  references_.erase(block);
  free_.insert(block);
}

void RandomSchedule::drop_cached(size_t key) {
  for (BlockId b : cached_.at(key).blocks) drop(b);
  for (HostBlockId h : cached_.at(key).host) host_free_.insert(h);
  cached_.erase(key);
}

void RandomSchedule::take_copies(const std::vector<BlockCopy>& copies, bool demoted) {
  for (const BlockCopy& copy : copies) {
    for (auto& [key, cached] : cached_) {
      const auto at = std::find(cached.host.begin(), cached.host.end(), copy.host);
      if (at == cached.host.end()) continue;
      VAMP_CHECK(cached.blocks.at(at - cached.host.begin()) == copy.device &&
                     cached.copies_left > 0 && cached.promoting != demoted,
                 "a copy reported that was not asked for");
      ++(demoted ? counts_.demoted : counts_.promoted);
      if (--cached.copies_left > 0) break;
      if (demoted) {
        for (BlockId b : cached.blocks) drop(b);
        cached.blocks.clear();
      } else {
        for (HostBlockId h : cached.host) host_free_.insert(h);
        cached.host.clear();
      }
      cached.promoting = false;
      break;
    }
  }
}

void RandomSchedule::take(const StepResult& result) {
  VAMP_CHECK(!pending_.empty() || result.step <= lost_until_, "a result for no plan");
  take_copies(result.demoted, true);
  take_copies(result.promoted, false);
  if (result.step <= lost_until_) {
    VAMP_CHECK(!result.executed, "step {} ran after one was lost", result.step);
    return;
  }
  VAMP_CHECK(result.step == pending_.front().step, "results out of order");
  if (!result.executed) return lose();
  for (RequestSlot slot : pending_.front().slots) {
    for (Request* r : running()) r->unanswered -= r->slot == slot;
  }
  pending_.pop_front();
  for (const SampledToken& token : result.tokens) {
    for (Request* r : running()) {
      if (r->slot != token.slot) continue;
      r->tokens.push_back(token.token);
      if (token.invalid) invalid_.insert(r->id);
      if (static_cast<int>(r->tokens.size()) - r->prompt >= r->sampling.max_tokens) {
        r->finished = true;
        leave(*r, !token.invalid);
      }
      break;
    }
  }
}

void RandomSchedule::lose() {
  ++counts_.lost;
  groups_out_ = pending_.front().groups_out;
  mapped_ = pending_.front().mapped;
  for (const Pending& pending : pending_) {
    for (size_t key : pending.copying) {
      Cached& cached = cached_.at(key);
      cached.copies_left = 0;
      if (cached.promoting) {
        for (BlockId b : cached.blocks) drop(b);
        cached.blocks.clear();
      } else {
        for (HostBlockId h : cached.host) host_free_.insert(h);
        cached.host.clear();
      }
      cached.promoting = false;
    }
  }
  // A block that such a plan moved never arrived.
  while (!cached_.empty() && cached_.rbegin()->first >= pending_.front().first_key) {
    drop_cached(cached_.rbegin()->first);
  }
  pending_.clear();
  for (Request* r : running()) {
    leave(*r, false);
    r->unanswered = 0;
  }
  to_release_.clear();
  rebuild_free();
  lost_until_ = step_;
  reset_ = true;
}

namespace {

// What a token's KV stands for: all tokens up to it.
uint64_t mix(uint64_t history, TokenId token) {
  return Random(history * 31 + static_cast<uint64_t>(token) + 1).next();
}

TokenId next_token(uint64_t history) {
  return static_cast<TokenId>(history % 97);
}

// An executor whose KV is a hash of the history, which it checks wherever it is read. It loses the
// steps it is told to.
class HashExecutor final : public Executor {
 public:
  HashExecutor(const MemoryLayout& layout, int host_blocks, std::set<StepId> lost)
      : layout_(layout),
        device_(layout.max_blocks(), Block(layout.block_tokens)),
        host_(host_blocks, Block(layout.block_tokens)),
        lost_(std::move(lost)) {}

  void submit(StepPlan plan) override {
    StepResult result;
    result.step = plan.step;
    if (plan.reset) skipping_ = false;
    skipping_ = skipping_ || lost_.count(plan.step) > 0;
    result.executed = !skipping_;
    if (!skipping_) run(plan, result);
    results_.push_back(std::move(result));
  }
  StepResult wait() override {
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }
  int in_flight() const override { return static_cast<int>(results_.size()); }

 private:
  using Block = std::vector<uint64_t>;

  void run(const StepPlan& plan, StepResult& result) {
    for (const BlockMove& move : plan.move_blocks) device_.at(move.to) = device_.at(move.from);
    result.demoted = std::exchange(next_demoted_, plan.demote);  // told one step later
    result.promoted = std::exchange(next_promoted_, plan.promote);
    VAMP_CHECK(!plan.await_copies || result.demoted.size() + result.promoted.size() > 0,
               "nothing to wait for");
    for (const BlockCopy& copy : plan.demote) host_.at(copy.host) = device_.at(copy.device);
    for (const BlockCopy& copy : plan.promote) device_.at(copy.device) = host_.at(copy.host);
    table_.apply(plan);
    for (const BatchEntry& entry : plan.batch) compute(entry, result);
  }

  void compute(const BatchEntry& entry, StepResult& result) {
    RunningRequest& row = table_.row(entry.slot);
    uint64_t history = 0;
    for (int p = 0; p < entry.first + entry.count; ++p) {
      history = mix(history, row.tokens.at(p));
      uint64_t& kv =
          device_.at(row.blocks.at(p / layout_.block_tokens)).at(p % layout_.block_tokens);
      if (p >= entry.first) kv = history;
      VAMP_CHECK(kv == history, "request {} reads other KV at token {}", row.id, p);
    }
    if (!entry.sample) return;
    row.tokens.push_back(next_token(history));
    SampledToken token;
    token.slot = entry.slot;
    token.token = row.tokens.back();
    result.tokens.push_back(token);
  }

  const MemoryLayout& layout_;
  std::vector<Block> device_, host_;
  std::set<StepId> lost_;
  bool skipping_ = false;
  RequestTable table_{1000};
  std::vector<BlockCopy> next_demoted_, next_promoted_;
  std::deque<StepResult> results_;
};

// Eight MoE layers of eight groups; four groups of each may go.
MemoryLayout small_layout() {
  MemoryLayoutOptions options;
  ModelConfig model;
  model.hidden_size = 64;
  model.moe_intermediate_size = 32;
  model.num_experts = 8;
  model.experts_per_token = 2;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = 32;
  model.vocab_size = 512;
  model.layers.resize(8);
  options.page_bytes = 4096;
  options.device_bytes = 3 * kMiB;
  options.block_tokens = 16;
  options.max_offload_percent = 50;
  return make_memory_layout(model, options);
}

TEST(RandomSchedule, KeepsItsPromises) {
  const MemoryLayout layout = small_layout();
  ASSERT_GT(layout.max_groups_out(), 10);
  RandomSchedule::Counts sum;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ScheduleOptions options;
    options.lag = seed % 2;
    options.host_blocks = 12;
    std::set<StepId> lost;
    if (seed % 3 == 0) lost = {5, 17, 18, 40};
    HashExecutor executor(layout, options.host_blocks, lost);
    RandomSchedule schedule(executor, layout, options, seed);
    Random random(seed);
    std::vector<TokenId> common(60);
    for (TokenId& t : common) t = static_cast<TokenId>(random.below(1000));
    std::map<RequestId, std::vector<TokenId>> prompts;
    for (RequestId id = 0; id < 8; ++id) {
      std::vector<TokenId> prompt(common.begin(), common.begin() + random.between(1, 60));
      for (int i = 0; i < 20; ++i) prompt.push_back(static_cast<TokenId>(random.below(1000)));
      SamplingParams sampling;
      sampling.max_tokens = 12;
      prompts[id] = prompt;
      schedule.add(id, prompt, sampling);
    }
    for (const auto& [id, output] : schedule.run()) {
      uint64_t history = 0;
      for (TokenId t : prompts[id]) history = mix(history, t);
      ASSERT_EQ(output.size(), 12u);
      for (TokenId t : output) {
        ASSERT_EQ(t, next_token(history));
        history = mix(history, t);
      }
    }
    const RandomSchedule::Counts& c = schedule.counts();
    sum.lost += c.lost;
    sum.boundary_moves += c.boundary_moves;
    sum.block_moves += c.block_moves;
    sum.preemptions += c.preemptions;
    sum.hits += c.hits;
    sum.demoted += c.demoted;
    sum.promoted += c.promoted;
  }
  // All that it is for did happen.
  EXPECT_GT(sum.lost, 20);
  EXPECT_GT(sum.boundary_moves, 100);
  EXPECT_GT(sum.block_moves, 100);
  EXPECT_GT(sum.preemptions, 20);
  EXPECT_GT(sum.hits, 50);
  EXPECT_GT(sum.demoted, 50);
  EXPECT_GT(sum.promoted, 50);
}

}  // namespace
}  // namespace vamp
