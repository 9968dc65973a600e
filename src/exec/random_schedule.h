// Test help: a scheduler that does at random whatever an executor must bear.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/random.h"
#include "core/executor.h"
#include "model/memory_layout.h"

namespace vamp {

struct ScheduleOptions {
  int max_running = 4;
  int max_chunk = 40;         // tokens of one entry: 1 ... at random
  bool whole_chunks = false;  // as many tokens as there are instead
  int lag = 1;                // plans made before the result of the one before has come: 0 or 1
  int host_blocks = 0;
  // Chances a step.
  double work = 0.8;  // that a running request has an entry
  double preempt = 0.05;
  double move_boundary = 0.3;
  double move_block = 0.2;
  double copy = 0.3;  // of a cached prefix to or from the host tier
  bool reuse_prefixes = true;
  bool random_staging = false;  // another mode each step; else auto
};

// Runs requests to their max_tokens with random chunks, batches, preemptions, prefix reuse on both
// tiers, moved blocks and a boundary that goes anywhere between any two steps. It keeps the
// promises that an executor may count on (core/step_plan.h) and no others.
class RandomSchedule {
 public:
  struct Counts {
    int steps = 0, lost = 0, boundary_moves = 0, block_moves = 0, preemptions = 0, hits = 0;
    int demoted = 0, promoted = 0;  // blocks
  };

  RandomSchedule(Executor& executor, const MemoryLayout& layout, const ScheduleOptions& options,
                 uint64_t seed);

  void add(RequestId id, std::vector<TokenId> prompt, const SamplingParams& sampling);
  // One plan more, and the results that are due. False: all have finished.
  bool step();
  // Until all have finished. Returns every request's output.
  std::map<RequestId, std::vector<TokenId>> run();

  const Counts& counts() const { return counts_; }
  const std::set<RequestId>& invalid() const { return invalid_; }  // some token was reported so
  const StepResult& last_result() const { return last_result_; }

 private:
  struct Request {
    RequestId id = 0;
    std::vector<TokenId> tokens;  // known ones
    int prompt = 0;
    SamplingParams sampling;
    RequestSlot slot = -1;  // -1: waiting, or finished
    bool finished = false;
    int planned = 0;     // tokens, provisional ones included
    int computed = 0;    // of them, those whose KV is planned
    int unanswered = 0;  // plans in flight that it is in
    std::vector<BlockId> blocks;
  };
  // Full blocks of a request that finished or was preempted: on the device, in the host tier, or in
  // both while copies are under way.
  struct Cached {
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
    std::vector<HostBlockId> host;
    size_t copies_left = 0;
    bool promoting = false;
  };
  // What a plan in flight rests on, to take it back if its step is lost.
  struct Pending {
    StepId step = 0;
    int groups_out = 0;
    std::vector<bool> mapped;
    std::vector<size_t> copying;  // cached prefixes whose copies it starts
    size_t first_key = 0;         // prefixes cached from here on may rest on it
    std::vector<RequestSlot> slots;
  };

  StepPlan make_plan(Pending& pending);
  void plan_boundary(StepPlan& plan);
  bool empty_slot(PoolSlot slot);
  void plan_block_move(StepPlan& plan);
  void plan_copy(StepPlan& plan, Pending& pending);
  void plan_start(StepPlan& plan, Request& request);
  void plan_work(StepPlan& plan, Request& request, Pending& pending);
  void preempt(Request& request, bool keep_blocks);
  void take(const StepResult& result);
  void take_copies(const std::vector<BlockCopy>& copies, bool demoted);
  void lose();
  void leave(Request& request, bool keep_blocks);
  bool make_room(size_t blocks);
  BlockId allocate();
  void drop(BlockId block);
  void drop_cached(size_t key);
  bool exists(BlockId block) const;
  void rebuild_free();
  std::vector<Request*> running();

  Executor& executor_;
  const MemoryLayout& layout_;
  ScheduleOptions options_;
  Random random_;
  Counts counts_;
  std::set<RequestId> invalid_;
  StepResult last_result_;

  StepId step_ = 0;
  StepId lost_until_ = 0;  // results up to this step belong to plans that are taken back already
  bool reset_ = false;
  std::vector<Request> requests_;
  std::map<size_t, Cached> cached_;
  size_t next_key_ = 0;
  std::vector<bool> mapped_;
  int groups_out_;
  std::set<BlockId> free_;
  std::map<BlockId, int> references_;
  std::set<HostBlockId> host_free_;
  std::set<RequestSlot> free_slots_;
  std::vector<RequestSlot> to_release_;
  std::deque<Pending> pending_;
};

}  // namespace vamp
