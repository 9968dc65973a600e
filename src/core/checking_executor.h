// For tests: an executor without a model that holds the scheduler to its contract.
//
// The KV of a token is the hash of all tokens up to it, so a block that is read while it holds
// anything but the right history is seen at once, and so is one that is unmapped, in flight or
// written by two. A sampled token is a function of the whole history: what a request must answer is
// known beforehand.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "core/executor.h"

namespace vamp {

inline uint64_t extend_history(uint64_t history, TokenId token) {
  return Random(history * 31 + static_cast<uint64_t>(token) + 1).next();
}
inline TokenId sample_history(uint64_t history, uint64_t seed, int vocabulary) {
  return static_cast<TokenId>(
      Random(history ^ (seed * 0x9E3779B97F4A7C15ull)).below(static_cast<uint64_t>(vocabulary)));
}

inline float score_history(uint64_t history, TokenId token) {
  return -static_cast<float>(extend_history(history, token) % 1000);
}

struct CheckingExecutorOptions {
  int host_blocks = 0;
  int vocabulary = 1000;
  double failure_rate = 0;   // of a step
  double copy_rate = 1;      // chance that a copy under way ends with a step
  double invalid_rate = 0;   // of a sampled token (NaN logits)
  int logit_rows = 1 << 30;  // of one step
  uint64_t seed = 1;
};

class CheckingExecutor final : public Executor {
 public:
  CheckingExecutor(const MemoryLayout& layout, const CheckingExecutorOptions& options)
      : layout_(layout),
        options_(options),
        random_(options.seed),
        groups_out_(layout.min_groups_out),
        mapped_(layout.max_pool_slots(), false),
        device_(layout.max_blocks()),
        host_(options.host_blocks) {
    for (int slot = 0; slot < layout.pool_slots(groups_out_); ++slot) mapped_[slot] = true;
  }

  void submit(StepPlan plan) override {
    VAMP_CHECK(in_flight() < 2, "three plans in flight");
    VAMP_CHECK(!plan.empty(), "an empty plan");
    VAMP_CHECK(plan.step > last_step_, "step {} after step {}", plan.step, last_step_);
    last_step_ = plan.step;
    Answer answer;
    answer.result.step = plan.step;
    if (plan.reset) {
      failed_ = false;
      rows_.clear();
    }
    if (failed_ || random_.chance(options_.failure_rate) || (plan.boundary && !boundary_moves_)) {
      failed_ = true;
      answer.result.executed = false;
      answer.result.failure = "injected";
    } else {
      carry_out(plan, answer);
    }
    end_copies(plan.await_copies && !failed_, answer.result);
    answer.result.start = time_;
    answer.result.end = time_ += 1000;
    answers_.push_back(std::move(answer));
  }
  StepResult wait() override {
    VAMP_CHECK(!answers_.empty(), "nothing to wait for");
    StepResult result = std::move(answers_.front().result);
    answers_.pop_front();
    return result;
  }
  int in_flight() const override { return static_cast<int>(answers_.size()); }

  // Tokens computed so far: what cache hits save.
  int64_t computed_tokens() const { return computed_tokens_; }
  int groups_out() const { return groups_out_; }
  void fail_next_step() { failed_ = true; }
  // false: every plan that moves the boundary fails from now on.
  void set_boundary_moves(bool moves) { boundary_moves_ = moves; }
  void set_copy_rate(double rate) { options_.copy_rate = rate; }

 private:
  enum class InFlight { kNo, kFilling, kReading };
  struct Content {
    std::vector<uint64_t> history;  // by token; 0: nothing
    InFlight in_flight = InFlight::kNo;
  };
  struct Row {
    StartRequest start;
    std::vector<TokenId> tokens;
    std::vector<uint64_t> history;  // after each token
    std::vector<BlockId> table;
    void append(TokenId token) {
      history.push_back(extend_history(history.empty() ? 7 : history.back(), token));
      tokens.push_back(token);
    }
  };
  struct Copy {
    BlockCopy blocks;
    bool demote = false;
    std::vector<uint64_t> content;
  };
  struct Answer {
    StepResult result;
    std::set<BlockId> touched;
  };

  void carry_out(const StepPlan& plan, Answer& answer) {
    for (RequestSlot slot : plan.release)
      VAMP_CHECK(rows_.erase(slot) == 1, "slot {} is not in use", slot);
    // Early: only the forward pass looks at tables, and what an edit gives back may leave the pool.
    for (const TableEdit& edit : plan.edit_tables) {
      VAMP_CHECK(rows_.contains(edit.slot), "an edit of unknown slot {}", edit.slot);
      rows_[edit.slot].table.at(edit.index) = edit.block;
    }
    if (plan.boundary) move_boundary(*plan.boundary);
    for (const BlockMove& move : plan.move_blocks) {
      VAMP_CHECK(at(move.to).in_flight == InFlight::kNo, "block {} is overwritten in flight",
                 move.to);
      VAMP_CHECK(at(move.from).in_flight == InFlight::kNo, "block {} moves while in flight",
                 move.from);
      at(move.to).history = at(move.from).history;
      answer.touched.insert({move.from, move.to});
    }
    start_copies(plan, answer);
    for (const StartRequest& start : plan.start) {
      VAMP_CHECK(!rows_.contains(start.slot), "slot {} is in use", start.slot);
      Row& row = rows_[start.slot];
      row.start = start;
      row.table = start.blocks;
      for (TokenId token : start.tokens) row.append(token);
    }
    forward(plan, answer);
  }

  void move_boundary(const BoundaryMove& move) {
    groups_out_ = move.groups_out;
    VAMP_CHECK(move.order_version == layout_.order.version, "an old order");
    for (PoolSlot slot : move.unmap_slots) {
      VAMP_CHECK(mapped_.at(slot), "slot {} is not mapped", slot);
      for (BlockId block : layout_.blocks_touching(slot, mapped_)) {
        VAMP_CHECK(device_[block].in_flight == InFlight::kNo, "block {} is unmapped in flight",
                   block);
        for (const auto& [id, row] : rows_) {
          VAMP_CHECK(std::count(row.table.begin(), row.table.end(), block) == 0,
                     "block {} is unmapped while in use", block);
        }
        for (const Answer& earlier : answers_) {
          VAMP_CHECK(!earlier.touched.contains(block), "block {} is unmapped under step {}", block,
                     earlier.result.step);
        }
        device_[block].history.clear();
      }
      mapped_[slot] = false;
    }
    for (PoolSlot slot : move.map_slots) {
      VAMP_CHECK(!mapped_.at(slot), "slot {} is mapped already", slot);
      mapped_[slot] = true;
      for (BlockId block : layout_.blocks_touching(slot, mapped_)) device_[block].history.clear();
    }
    VAMP_CHECK(std::count(mapped_.begin(), mapped_.end(), true) == layout_.pool_slots(groups_out_),
               "slots mapped at boundary {}", groups_out_);
  }

  void start_copies(const StepPlan& plan, Answer& answer) {
    for (const BlockCopy& copy : plan.demote) {
      VAMP_CHECK(at(copy.device).in_flight == InFlight::kNo &&
                     host_.at(copy.host).in_flight == InFlight::kNo,
                 "block {} or host block {} is in flight already", copy.device, copy.host);
      at(copy.device).in_flight = InFlight::kReading;
      host_[copy.host].in_flight = InFlight::kFilling;
      copies_.push_back({copy, true, at(copy.device).history});
      answer.touched.insert(copy.device);
    }
    for (const BlockCopy& copy : plan.promote) {
      VAMP_CHECK(host_.at(copy.host).in_flight == InFlight::kNo, "host block {} is in flight",
                 copy.host);
      check_writable(copy.device, nullptr);
      at(copy.device).in_flight = InFlight::kFilling;
      at(copy.device).history.clear();
      host_[copy.host].in_flight = InFlight::kReading;
      copies_.push_back({copy, false, host_[copy.host].history});
      answer.touched.insert(copy.device);
    }
  }

  void end_copies(bool at_least_one, StepResult& result) {
    VAMP_CHECK(!at_least_one || !copies_.empty(), "a plan waits for copies, but none is under way");
    for (size_t i = 0; i < copies_.size();) {
      if (!random_.chance(options_.copy_rate) && !(at_least_one && i + 1 == copies_.size())) {
        ++i;
        continue;
      }
      at_least_one = false;
      const Copy& copy = copies_[i];
      Content& device = device_[copy.blocks.device];
      Content& host = host_[copy.blocks.host];
      VAMP_CHECK((copy.demote ? device : host).history == copy.content,
                 "a copy's source was overwritten");
      (copy.demote ? host : device).history = copy.content;
      device.in_flight = host.in_flight = InFlight::kNo;
      (copy.demote ? result.demoted : result.promoted).push_back(copy.blocks);
      copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void forward(const StepPlan& plan, Answer& answer) {
    std::set<RequestSlot> seen;
    // All read before any writes: what one row writes in this step no other may count on.
    for (const BatchEntry& entry : plan.batch) {
      VAMP_CHECK(seen.insert(entry.slot).second, "slot {} has two rows", entry.slot);
      VAMP_CHECK(rows_.contains(entry.slot), "a row of unknown slot {}", entry.slot);
      Row& row = rows_[entry.slot];
      row.table.insert(row.table.end(), entry.new_blocks.begin(), entry.new_blocks.end());
      VAMP_CHECK(
          entry.count > 0 && entry.first + entry.count <= static_cast<int>(row.tokens.size()),
          "row [{}, +{}) of {} tokens", entry.first, entry.count, row.tokens.size());
      for (int i = 0; i < entry.first; ++i) {
        const BlockId block = row.table.at(i / layout_.block_tokens);
        const Content& content = at(block);
        VAMP_CHECK(content.in_flight != InFlight::kFilling, "block {} is read before it is filled",
                   block);
        const size_t offset = static_cast<size_t>(i % layout_.block_tokens);
        VAMP_CHECK(offset < content.history.size() && content.history[offset] == row.history[i],
                   "request {} reads token {} from block {}, which holds something else",
                   row.start.id, i, block);
      }
    }
    int logit_rows = 0;
    for (const BatchEntry& entry : plan.batch) logit_rows += entry.scored + entry.sample;
    VAMP_CHECK(logit_rows <= options_.logit_rows, "{} rows of logits", logit_rows);
    for (const BatchEntry& entry : plan.batch) {
      Row& row = rows_[entry.slot];
      for (BlockId block : row.table) answer.touched.insert(block);
      for (int i = entry.first; i < entry.first + entry.count; ++i) {
        const BlockId block = row.table.at(i / layout_.block_tokens);
        if (i == entry.first || i % layout_.block_tokens == 0) check_writable(block, &row);
        Content& content = at(block);
        content.history.resize(static_cast<size_t>(layout_.block_tokens), 0);
        content.history[i % layout_.block_tokens] = row.history[i];
      }
      computed_tokens_ += entry.count;
      for (int i = entry.first; i < entry.first + entry.scored; ++i) {
        SampledToken& scored = answer.result.scored.emplace_back();
        scored.slot = entry.slot;
        scored.token = row.tokens.at(static_cast<size_t>(i) + 1);
        scored.logprob = score_history(row.history[static_cast<size_t>(i)], scored.token);
        scored.invalid = options_.invalid_rate == 1;
      }
      if (!entry.sample) continue;
      const int last = entry.first + entry.count - 1;
      VAMP_CHECK(last + 1 == static_cast<int>(row.tokens.size()),
                 "request {} samples in its middle", row.start.id);
      SampledToken sampled;
      sampled.slot = entry.slot;
      sampled.token =
          sample_history(row.history[last], row.start.sampling.seed, options_.vocabulary);
      sampled.invalid = random_.chance(options_.invalid_rate);
      row.append(sampled.token);
      answer.result.tokens.push_back(std::move(sampled));
    }
  }

  Content& at(BlockId block) {
    const size_t begin = static_cast<size_t>(block) * layout_.block_bytes;
    const size_t end = begin + layout_.block_bytes;
    for (size_t slot = 0; slot < mapped_.size(); ++slot) {
      const size_t slot_begin = layout_.base_pool_bytes + slot * layout_.group_bytes();
      const bool touches = begin < slot_begin + layout_.group_bytes() && end > slot_begin;
      VAMP_CHECK(!touches || mapped_[slot], "block {} lies in unmapped slot {}", block, slot);
    }
    return device_.at(block);
  }

  // Nobody but `writer` may hold a block that is written.
  void check_writable(BlockId block, const Row* writer) {
    VAMP_CHECK(at(block).in_flight == InFlight::kNo, "block {} is written while in flight", block);
    for (const auto& [slot, row] : rows_) {
      const auto held = std::count(row.table.begin(), row.table.end(), block);
      VAMP_CHECK(held == (&row == writer ? 1 : 0), "block {} is written while request {} holds it",
                 block, row.start.id);
    }
  }

  const MemoryLayout& layout_;
  CheckingExecutorOptions options_;
  Random random_;
  int groups_out_;
  std::vector<bool> mapped_;
  std::vector<Content> device_, host_;
  std::map<RequestSlot, Row> rows_;
  std::vector<Copy> copies_;
  std::deque<Answer> answers_;
  StepId last_step_ = 0;
  bool failed_ = false;
  bool boundary_moves_ = true;
  int64_t computed_tokens_ = 0;
  Micros time_ = 0;
};

}  // namespace vamp
