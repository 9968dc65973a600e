#include "exec/moe_executor.h"

#include <numeric>

namespace vamp {
namespace {

MoeShape moe_shape(const ModelConfig& model) {
  return {model.num_experts, model.experts_per_token, model.hidden_size,
          model.moe_intermediate_size};
}

}  // namespace

MoeExecutor::MoeExecutor(const ModelConfig& model, const HbmPartition& partition,
                         const HostExperts& source, const Clock& clock, Ops& ops, int max_tokens)
    : model_(model),
      partition_(partition),
      ops_(ops),
      shape_(moe_shape(model)),
      staging_(partition, source, clock),
      counts_(static_cast<size_t>(model.num_moe_layers()) * model.num_experts) {
  const size_t tokens = static_cast<size_t>(max_tokens);
  const size_t pairs = tokens * shape_.top_k;
  logits_ = AlignedBuffer(tokens * shape_.experts * sizeof(float));
  experts_ = AlignedBuffer(pairs * sizeof(int32_t));
  weights_ = AlignedBuffer(pairs * sizeof(float));
  expert_start_ = AlignedBuffer((shape_.experts + 1) * sizeof(int32_t));
  pairs_ = AlignedBuffer(pairs * sizeof(int32_t));
  workspace_ = AlignedBuffer(ops.moe_workspace_bytes(max_tokens, shape_));
  routing_ = {experts_.as<int32_t>(), weights_.as<float>(), expert_start_.as<int32_t>(),
              pairs_.as<int32_t>()};
}

size_t MoeExecutor::buffer_bytes(const ModelConfig& model, const Ops& ops, int max_tokens) {
  const MoeShape shape = moe_shape(model);
  const size_t tokens = static_cast<size_t>(max_tokens);
  return tokens * shape.experts * sizeof(float) + 3 * tokens * shape.top_k * sizeof(int32_t) +
         (shape.experts + 1) * sizeof(int32_t) + ops.moe_workspace_bytes(max_tokens, shape);
}

void MoeExecutor::begin_step(StagingMode mode) {
  mode_ = mode;
  activated_bytes_ = 0;
  experts_by_layer_.clear();
  if (mode != StagingMode::kWholeRegion) return;
  for (int m = 0; m < model_.num_moe_layers(); ++m) staging_.begin_region(m);
}

void MoeExecutor::route(const WeightMatrix& router, const void* x, int tokens) {
  LinearPart part;
  part.weight = router;
  part.out = logits_.data();
  part.out_stride = shape_.experts;
  part.kind = LinearPart::Out::kFloat;
  ops_.linear(x, shape_.hidden, tokens, {&part, 1});
  ops_.route(logits_.as<float>(), tokens, shape_, model_.norm_topk_prob, routing_);
}

void MoeExecutor::sort_chosen(int moe_layer) {
  resident_.clear();
  given_up_.clear();
  const int first_given_up = partition_.experts().first_given_up_expert(moe_layer);
  uint32_t* counts = counts_.data() + static_cast<size_t>(moe_layer) * shape_.experts;
  for (int e = 0; e < shape_.experts; ++e) {
    const int chosen = routing_.expert_start[e + 1] - routing_.expert_start[e];
    if (chosen == 0) continue;
    counts[e] += static_cast<uint32_t>(chosen);
    (e < first_given_up ? resident_ : given_up_).push_back(e);
  }
  activated_bytes_ += given_up_.size() * partition_.layout().shard_bytes();
  experts_by_layer_.push_back(static_cast<uint16_t>(resident_.size() + given_up_.size()));
}

void MoeExecutor::run(int moe_layer, const WeightMatrix& router, const void* x, int tokens,
                      void* residual) {
  route(router, x, tokens);
  sort_chosen(moe_layer);
  if (mode_ == StagingMode::kActivated) staging_.begin_experts(moe_layer, given_up_);

  const MemoryLayout& layout = partition_.layout();
  const std::byte* first = partition_.experts().expert(moe_layer, 0);
  const MoeWeights weights = {first, first + layout.gate_up_shard_bytes, layout.shard_bytes(),
                              layout.shard_bytes(), model_.dtype};
  const auto multiply = [&](std::span<const int32_t> experts) {
    ops_.moe_experts(x, tokens, shape_, weights, routing_, experts, workspace_.data());
  };
  // Residents first: the copies go on meanwhile.
  multiply(resident_);
  staging_.wait(moe_layer);
  multiply(given_up_);
  staging_.release(moe_layer);
  ops_.moe_combine(workspace_.data(), tokens, shape_, routing_, residual);
}

StagingStats MoeExecutor::end_step() {
  const StagingCounters counters = staging_.end_step();
  StagingStats stats;
  stats.staged_bytes = counters.staged_bytes;
  stats.activated_bytes = activated_bytes_;
  stats.stall = counters.stall;
  stats.used = partition_.groups_out() > 0 ? mode_ : StagingMode::kAuto;
  return stats;
}

float MoeExecutor::experts_per_layer() const {
  if (experts_by_layer_.empty()) return 0;
  const int sum = std::accumulate(experts_by_layer_.begin(), experts_by_layer_.end(), 0);
  return static_cast<float>(sum) / static_cast<float>(experts_by_layer_.size());
}

void MoeExecutor::abandon() {
  staging_.abandon();
}

std::vector<uint32_t> MoeExecutor::take_counts() {
  std::vector<uint32_t> counts(counts_.size());
  counts.swap(counts_);
  return counts;
}

}  // namespace vamp
