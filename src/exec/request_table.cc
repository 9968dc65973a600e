#include "exec/request_table.h"

#include <spdlog/spdlog.h>

#include <limits>

#include "base/error.h"

namespace vamp {

SampleParams RunningRequest::sample_params() {
  SampleParams p;
  p.temperature = sampling.temperature;
  p.top_p = sampling.top_p;
  p.top_k = sampling.top_k;
  p.min_p = sampling.min_p;
  p.repetition_penalty = sampling.repetition_penalty;
  p.presence_penalty = sampling.presence_penalty;
  p.frequency_penalty = sampling.frequency_penalty;
  p.logit_bias = num_output() < sampling.min_tokens ? early_bias : sampling.logit_bias;
  const std::span<const TokenId> all(tokens);
  p.prompt = all.first(static_cast<size_t>(prompt_tokens));
  p.output = all.subspan(static_cast<size_t>(prompt_tokens));
  if (sampling.grammar != nullptr) {
    use_grammar([&] {
      matcher->fill(allowed);
      p.allowed = allowed;
    });
  }
  p.seed = sampling.seed;
  p.counter = static_cast<uint64_t>(num_output());
  p.logprobs = sampling.logprobs;
  return p;
}

SampleParams RunningRequest::score_params(TokenId known, std::vector<uint32_t>& mask) const {
  const auto bit = static_cast<size_t>(known);
  mask[bit / 32] |= 1u << (bit % 32);
  SampleParams p;
  p.allowed = mask;
  p.logprobs = sampling.prompt_logprobs;
  return p;
}

void RunningRequest::append(TokenId token) {
  tokens.push_back(token);
  if (sampling.grammar != nullptr) use_grammar([&] { follow(token); });
}

// After a preemption the output so far is followed anew.
void RunningRequest::start_grammar(int vocab_size) {
  if (sampling.grammar == nullptr) return;
  use_grammar([&] {
    matcher = sampling.grammar->start(sampling.stop_token_ids);
    allowed.assign((static_cast<size_t>(vocab_size) + 31) / 32, 0);
    for (size_t i = static_cast<size_t>(prompt_tokens); i < tokens.size(); ++i) follow(tokens[i]);
  });
}

void RunningRequest::follow(TokenId token) {
  if (!matcher->accept(token)) throw Error("token {} came, which it does not allow", token);
}

// Grammars come from clients: whatever goes wrong in one is its request's fault alone.
template <typename Use>
void RunningRequest::use_grammar(Use use) {
  if (!valid) return;
  try {
    use();
  } catch (const std::exception& error) {
    spdlog::error("request {}: its grammar has failed: {}", id, error.what());
    valid = false;
  }
}

RunningRequest& RequestTable::row(RequestSlot slot) {
  VAMP_CHECK(slot >= 0 && static_cast<size_t>(slot) < rows_.size() && rows_[slot].active,
             "no running request in slot {}", slot);
  return rows_[slot];
}

const RunningRequest& RequestTable::row(RequestSlot slot) const {
  return const_cast<RequestTable*>(this)->row(slot);
}

void RequestTable::apply(const StepPlan& plan) {
  if (plan.reset) rows_.clear();
  for (RequestSlot slot : plan.release) row(slot) = RunningRequest{};
  for (const TableEdit& edit : plan.edit_tables) {
    std::vector<BlockId>& blocks = row(edit.slot).blocks;
    VAMP_CHECK(edit.index >= 0 && static_cast<size_t>(edit.index) < blocks.size(),
               "slot {}: entry {} of a table of {}", edit.slot, edit.index, blocks.size());
    blocks[edit.index] = edit.block;
  }
  for (const StartRequest& request : plan.start) start(request);
  for (const BatchEntry& entry : plan.batch) {
    std::vector<BlockId>& blocks = row(entry.slot).blocks;
    blocks.insert(blocks.end(), entry.new_blocks.begin(), entry.new_blocks.end());
  }
}

void RequestTable::start(const StartRequest& request) {
  VAMP_CHECK(request.slot >= 0, "slot {}", request.slot);
  VAMP_CHECK(request.prompt_tokens >= 0 &&
                 static_cast<size_t>(request.prompt_tokens) <= request.tokens.size(),
             "{} prompt tokens of {}", request.prompt_tokens, request.tokens.size());
  if (static_cast<size_t>(request.slot) >= rows_.size()) rows_.resize(request.slot + 1);
  RunningRequest& row = rows_[request.slot];
  VAMP_CHECK(!row.active, "slot {} already holds request {}", request.slot, row.id);
  row.active = true;
  row.id = request.id;
  row.tokens = request.tokens;
  row.prompt_tokens = request.prompt_tokens;
  row.blocks = request.blocks;
  row.sampling = request.sampling;
  for (TokenId& token : row.tokens) {
    if (token >= 0 && token < vocab_size_) continue;
    row.valid = false;
    token = 0;  // what it computes is thrown away, but may not read outside the embedding
  }
  row.start_grammar(vocab_size_);
  if (row.num_output() >= row.sampling.min_tokens) return;
  row.early_bias = row.sampling.logit_bias;
  for (TokenId token : row.sampling.stop_token_ids) {
    row.early_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace vamp
