// The KV cache: which block holds what, on the device and in the host tier.
//
// A device block is free, referenced by running requests, cached (published content that nobody
// runs on, in the eviction order), or in flight (a copy to or from the host has not ended: it is
// not free, and a block that is being filled is not readable). Allocation takes free blocks only:
// it never evicts. Whoever wants room drops or demotes, by order or by candidate.
//
// Content is published as a chain of keys. A chain is complete: a published block's parent exists,
// and is on the device if the block is. So how much of a prompt is cached is a binary search.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/block_pool.h"
#include "core/eviction_order.h"
#include "core/ghost_list.h"
#include "core/host_tier.h"
#include "core/kv_event_log.h"
#include "core/prefix_index.h"
#include "core/reclaim_policy.h"
#include "core/step_plan.h"

namespace vamp {

using BlockTable = std::vector<BlockId>;

// How much of a chain is there.
struct PrefixMatch {
  int device_blocks = 0;        // on the device, or on their way to it
  int host_blocks = 0;          // after those, in the host tier only
  bool being_computed = false;  // the next block is written by the plan under construction
  int total() const { return device_blocks + host_blocks; }
};

// Owns ids and their state, no memory. Time and step come by begin_step(). One thread. Every call
// costs the blocks it names, never the blocks there are, unless its comment says otherwise.
class BlockManager {
 public:
  // `kv_events`: keep a log of what the tiers come to hold and lose.
  BlockManager(const MemoryLayout& layout, int host_blocks, int max_ghosts, bool kv_events);

  // Calls after this belong to plan `step`; sent_step() says that it has gone out.
  void begin_step(StepId step, Micros now) {
    step_ = step;
    now_ = now;
  }
  void sent_step() { sent_ = step_; }
  // Results up to this step are in.
  void set_answered(StepId step) { answered_ = step; }

  // --- a request's way ---
  PrefixMatch match(std::span<const PrefixKey> keys, int max_blocks) const;
  // Takes the matched device blocks into an empty table and pins the matched host blocks; then
  // either brings those back into free blocks, or lets go of all of it.
  void hold(std::span<const PrefixKey> keys, const PrefixMatch& match, BlockTable& table);
  void promote(std::span<const PrefixKey> keys, const PrefixMatch& match, BlockTable& table,
               StepPlan& plan);
  void let_go(std::span<const PrefixKey> keys, const PrefixMatch& match, BlockTable& table,
              SessionId session);
  // A promotion into it is under way: not readable yet.
  bool arriving(BlockId block) const { return pool_.at(block).copy == CopyKind::kPromote; }
  void allocate(int count, BlockTable& table);  // needs `count` free blocks
  void trim(BlockTable& table, int keep);       // gives back unpublished blocks at its end

  // Gives the full block table[index], which holds `tokens`, its name; table[index - 1] is
  // published already. `written`: the plan that fills it. When the same content is published in
  // another block, the request takes that one instead if `may_adopt` (and gives its own back), else
  // it stays unpublished.
  enum class Published { kNew, kAdopted, kNotYet };
  Published publish(BlockTable& table, int index, const PrefixKey& key,
                    std::span<const TokenId> tokens, StepId written, bool may_adopt);

  // Lets go of all blocks: published ones become cached, the others free. From index
  // `arriving_from` on, promotions may be under way: what nobody else waits for goes back to the
  // host tier alone. `over`: nobody will use this chain again, it goes first.
  RunId release(BlockTable& table, int arriving_from, SessionId session, bool over);
  // The session that last used the content named by `key`, 0 if none.
  SessionId session_of(const PrefixKey& key) const;
  // Of a table, how many blocks at its end nobody else holds. O(log).
  int unshared_blocks(const BlockTable& table) const;

  // --- making room; the result is how many blocks became free ---
  int drop_coldest(int count, uint64_t decision);
  int drop(uint64_t handle, int count, uint64_t decision);
  void drop_run(RunId run);  // that release() returned
  // Copies a candidate's blocks to the host tier; with `evict` they leave the device as soon as
  // they are there (clean ones at once).
  int demote(uint64_t handle, int count, bool evict, StepPlan& plan);
  // The same for the run that release() returned.
  int demote_run(RunId run, bool evict, StepPlan& plan);
  // Coldest first, at most `max` runs, each cut to `segment_blocks` from its end.
  void candidates(int max, int segment_blocks, std::vector<EvictionCandidate>& out) const;
  // Runs with blocks that the host tier lacks, coldest first, at most `max`; whole, whatever can
  // go.
  void dirty_runs(int max, std::vector<EvictionCandidate>& out) const;
  void reset_cache();

  // --- a preempted request's partly filled block ---
  // The table's last block goes to the host; it frees itself when the copy has ended. kNoId: no
  // room there, and it stays.
  HostBlockId swap_out_last(BlockTable& table, StepPlan& plan);
  bool swapped_out(HostBlockId block) const { return swap_ready_[block]; }
  // Back into a new last block of the table (needs a free block). The host block frees itself.
  void swap_in(HostBlockId block, BlockTable& table, StepPlan& plan);
  // Its owner does not want it any more, in flight or not.
  void discard_swapped(HostBlockId block);

  // --- results ---
  void demoted(const BlockCopy& copy);
  void promoted(const BlockCopy& copy);
  // Blocks that become free by themselves when copies under way have ended.
  int leaving_blocks() const { return leaving_; }
  int copies_in_flight() const { return copies_in_flight_; }
  int demotions_in_flight() const { return demotions_in_flight_; }

  // --- the pool's extent; see PoolBoundary ---
  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }
  // Moves what lives in `blocks`, as far as free blocks and copies in flight allow. O(blocks).
  void relocate(std::span<const BlockId> blocks, std::vector<BlockMove>& moves);
  // Nothing lives in them, and no plan under way uses them.
  bool drained(std::span<const BlockId> blocks) const;

  // --- a failed step; no request holds anything ---
  // Plans from one step on were not carried out: their copies never started, their moves never
  // happened, what they would have computed is not there. In this order, undoing newer plans first.
  void undo_copies(std::span<const BlockCopy> demotes, std::span<const BlockCopy> promotes);
  void forget_written_since(StepId step);  // O(runs)
  void undo_moves(std::span<const BlockMove> moves);

  int free_blocks() const { return pool_.free_blocks(); }
  int cached_blocks() const { return order_.cached_blocks(); }
  int total_blocks() const { return pool_.total_blocks(); }
  int referenced_blocks() const { return referenced_; }
  int host_capacity() const { return host_.capacity(); }
  int host_free_blocks() const { return host_.free_blocks(); }
  GhostList& ghosts() { return ghosts_; }
  // The device holds a block from when it is published or its way back from the host begins; the
  // host tier once its copy has ended.
  KvEventLog& kv_events() { return kv_events_; }
  std::vector<PrefixKey> cached_keys(CacheTier tier) const;  // what the log adds up to; O(blocks)

  // `tables`: of every request that holds blocks. O(everything).
  void check_invariants(std::span<const BlockTable* const> tables) const;

 private:
  bool droppable(NodeId id) const;
  void drop_tail(NodeId id, uint64_t decision);
  void detach_device(NodeId id);
  void set_leaving(NodeId id, bool leaving);
  void count_leaving(BlockId id);
  void leave_if_ready(NodeId id);
  void forget(NodeId id, std::optional<Ghost> ghost);
  HostBlockId allocate_host(NodeId node);
  void drop_host(NodeId id);
  int demote_from(RunId run, int count, bool evict, StepPlan& plan);
  void start_copy(BlockId device, HostBlockId host, CopyKind kind, StepPlan& plan);
  void end_copy(BlockId device, HostBlockId host, CopyKind kind);
  void collect_chain(const PrefixKey& last, int count);
  void add_reference(BlockId id);
  bool remove_reference(BlockId id);  // true: that was the last

  const int block_tokens_;
  BlockPool pool_;
  PrefixIndex index_;
  EvictionOrder order_;
  HostTier host_;
  GhostList ghosts_;
  KvEventLog kv_events_;
  std::vector<bool> swap_ready_;  // by host block: a swapped partial block is complete
  StepId step_ = 0, sent_ = 0, answered_ = 0;
  Micros now_ = 0;
  int referenced_ = 0;
  int copies_in_flight_ = 0, demotions_in_flight_ = 0;
  int leaving_ = 0;
  std::vector<NodeId> stack_;  // of forget(), hold() and promote()
};

}  // namespace vamp
