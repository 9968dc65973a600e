// RandomSchedule keeps its books: blocks, results, lost steps.
#include <algorithm>

#include "base/error.h"
#include "exec/random_schedule.h"

namespace vamp {

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

}  // namespace vamp
