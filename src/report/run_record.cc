#include "report/run_record.h"

namespace vamp {

DecisionRow make_decision_row(const DecisionRecord& record) {
  const ReclaimInputs& in = record.inputs;
  const ReclaimDecision& out = record.decision;
  DecisionRow row;
  row.id = record.id;
  row.step = in.step;
  row.time = in.now;
  row.request = in.request;
  row.admission = in.admission;
  row.gap_blocks = in.gap_blocks;
  row.needed_blocks = in.needed_blocks;
  row.free_blocks = in.free_blocks;
  row.cached_blocks = in.cached_blocks;
  row.total_blocks = in.total_blocks;
  row.host_free_blocks = in.host_free_blocks;
  row.groups_out = in.boundary.groups_out;
  row.running = in.running;
  row.waiting = in.waiting;
  row.hit_rate = in.hit_rate;
  row.kind = out.kind;
  row.costs.fill(NAN);
  for (const ActionCost& cost : out.costs) row.costs.at(static_cast<size_t>(cost.kind)) = cost.cost;
  row.drop_blocks = out.drop_blocks;
  row.demote_segments = static_cast<int>(out.demote.size());
  row.give_up_groups = out.give_up_groups;
  row.preempted = static_cast<int>(out.preempt_recompute.size() + out.preempt_swap.size());
  row.blocks_won = record.blocks_won;
  row.repeats = record.repeats;
  row.until = record.until;
  row.reused_tokens = record.reused_tokens;
  row.first_reuse = record.first_reuse;
  row.note = out.note;
  return row;
}

MemoryFacts memory_facts(const MemoryLayout& layout) {
  MemoryFacts facts;
  facts.dense_bytes = layout.dense_weight_bytes;
  facts.reserve_bytes = layout.reserve_bytes;
  facts.group_bytes = layout.group_bytes();
  facts.block_bytes = layout.block_bytes;
  facts.base_pool_bytes = layout.base_pool_bytes;
  facts.kv_bytes_per_token = layout.kv_bytes_per_token;
  facts.total_groups = layout.total_groups();
  facts.missing_groups = layout.missing_groups;
  facts.max_groups_out = layout.max_groups_out();
  facts.moe_layers = layout.moe_layers;
  facts.experts_per_layer = layout.experts;
  return facts;
}

}  // namespace vamp
