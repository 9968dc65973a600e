#include "model/memory_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "base/test_files.h"
#include "model/checkpoint_tensors.h"

namespace vamp {
namespace {

ModelConfig small_model(Random& random) {
  ModelConfig model;
  model.architecture = Architecture::kMixtral;
  model.vocab_size = 100;
  model.hidden_size = 64 << random.below(3);
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = static_cast<int>(16 * random.between(1, 4));
  model.num_experts = static_cast<int>(random.between(2, 40));
  model.experts_per_token = 2;
  model.moe_intermediate_size = static_cast<int>(16 * random.between(1, 24));
  model.layers.resize(random.between(1, 6));
  return model;
}

MemoryLayoutOptions small_options(const ModelConfig& model, Random& random) {
  MemoryLayoutOptions options;
  options.page_bytes = 512 << random.below(5);
  options.tensor_parallel = random.chance(0.5) ? 1 : 2;
  options.block_tokens = static_cast<int>(random.between(1, 32));
  options.max_offload_percent = static_cast<double>(random.between(0, 100));
  options.round_to_increment = random.chance(0.3);
  options.reserve_bytes = random.below(100'000);
  const ExpertGeometry experts =
      make_expert_geometry(model, options.tensor_parallel, options.page_bytes);
  const size_t weights = dense_weight_bytes(model, options.tensor_parallel) + options.reserve_bytes;
  // From too little for all experts to plenty.
  options.device_bytes = weights +
                         static_cast<size_t>(static_cast<double>(experts.expert_bytes()) *
                                             (0.5 + 1.5 * random.uniform())) +
                         32 * kKiB;
  return options;
}

// Holds `check(layout, options)` for 300 random layouts that fit.
template <typename Check>
void for_random_layouts(Check check) {
  int fitting = 0;
  for (uint64_t seed = 0; fitting < 300; ++seed) {
    ASSERT_LT(seed, 2000u);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const ModelConfig model = small_model(random);
    const MemoryLayoutOptions options = small_options(model, random);
    try {
      check(make_memory_layout(model, options), options);
      ++fitting;
    } catch (const Error&) {  // too small: tested below
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(MemoryLayout, GroupsFillWholePages) {
  for_random_layouts([](const MemoryLayout& layout, const MemoryLayoutOptions& options) {
    EXPECT_EQ(layout.group_bytes() % options.page_bytes, 0u);
    EXPECT_EQ(layout.gate_up_shard_bytes % 256, 0u);
    EXPECT_EQ(layout.shard_bytes() % 256, 0u);
    EXPECT_GE(layout.gate_up_shard_bytes, layout.gate_up_data_bytes);
    EXPECT_GE(layout.down_shard_bytes, layout.down_data_bytes);
    EXPECT_GE(layout.groups_per_layer * layout.shards_per_group, layout.experts);
    EXPECT_LT((layout.groups_per_layer - 1) * layout.shards_per_group, layout.experts);
  });
}

TEST(MemoryLayout, EveryByteHasOneOwnerAtEveryBoundary) {
  for_random_layouts([](const MemoryLayout& layout, const MemoryLayoutOptions& options) {
    int last_slots = layout.pool_slots(0);
    for (int n = 0; n <= layout.max_groups_out(); ++n) {
      const int resident = layout.total_groups() - n;
      EXPECT_EQ(resident + layout.bank_groups(n) + layout.pool_slots(n), layout.physical_groups());
      EXPECT_GE(layout.pool_slots(n), last_slots);  // monotone
      EXPECT_LE(layout.pool_slots(n), last_slots + 1);
      last_slots = layout.pool_slots(n);
    }
    EXPECT_EQ(layout.bank_groups(0), 0);
    EXPECT_GE(layout.pool_slots(layout.min_groups_out), 0);
    EXPECT_EQ(layout.base_pool_bytes % options.page_bytes, 0u);
    EXPECT_LE(layout.dense_weight_bytes + layout.reserve_bytes + layout.base_pool_bytes +
                  layout.group_bytes() * static_cast<size_t>(layout.physical_groups()),
              options.device_bytes);
  });
}

TEST(MemoryLayout, OrderIsRoundRobinFromTheTail) {
  for_random_layouts([](const MemoryLayout& layout, const MemoryLayoutOptions&) {
    const int first = layout.first_moe_layer_resident ? 1 : 0;
    std::set<std::pair<int, int>> seen;
    for (int n = 0; n <= layout.max_groups_out(); ++n) {
      int least = layout.groups_per_layer, most = 0, total = 0;
      for (int layer = 0; layer < layout.moe_layers; ++layer) {
        const int out = layout.groups_out(n, layer);
        total += out;
        if (layer < first) {
          EXPECT_EQ(out, 0);
          continue;
        }
        least = std::min(least, out);
        most = std::max(most, out);
      }
      EXPECT_EQ(total, n);
      EXPECT_LE(layout.moe_layers > first ? most - least : 0, 1);
      EXPECT_LE(most, layout.max_groups_out_per_layer);
      if (n == 0) continue;
      const GroupId id = layout.order.groups[n - 1];
      EXPECT_TRUE(seen.insert({id.moe_layer, id.group}).second);
      EXPECT_EQ(id.group, layout.groups_per_layer - layout.groups_out(n, id.moe_layer));
    }
  });
}

TEST(MemoryLayout, BanksHoldTheDeepestTailOfTheirParity) {
  for_random_layouts([](const MemoryLayout& layout, const MemoryLayoutOptions&) {
    for (int n = 0; n <= layout.max_groups_out(); ++n) {
      int deepest[2] = {0, 0};
      for (int layer = 0; layer < layout.moe_layers; ++layer) {
        deepest[layer % 2] = std::max(deepest[layer % 2], layout.groups_out(n, layer));
      }
      EXPECT_EQ(layout.bank_groups(n), deepest[0] + deepest[1]);
    }
  });
}

TEST(MemoryLayout, BlocksComeAndGoWithTheirSlots) {
  for_random_layouts([](const MemoryLayout& layout, const MemoryLayoutOptions&) {
    Random random(layout.base_pool_bytes);
    std::vector<bool> mapped(layout.max_pool_slots(), false);
    std::set<BlockId> blocks;
    for (BlockId b = 0; b < layout.base_blocks(); ++b) blocks.insert(b);
    for (int step = 0; step < 30 && !mapped.empty(); ++step) {
      const auto slot = static_cast<PoolSlot>(random.below(mapped.size()));
      if (!mapped[slot]) {
        mapped[slot] = true;
        for (const BlockId b : layout.blocks_touching(slot, mapped)) {
          EXPECT_TRUE(blocks.insert(b).second) << b;
        }
      } else {
        for (const BlockId b : layout.blocks_touching(slot, mapped)) EXPECT_EQ(blocks.erase(b), 1u);
        mapped[slot] = false;
      }
      size_t mapped_bytes = layout.base_pool_bytes;
      for (const bool is_mapped : mapped) mapped_bytes += is_mapped ? layout.group_bytes() : 0;
      EXPECT_LE(blocks.size() * layout.block_bytes, mapped_bytes);
    }
    for (PoolSlot slot = 0; slot < static_cast<PoolSlot>(mapped.size()); ++slot) {
      if (mapped[slot]) continue;
      mapped[slot] = true;
      for (const BlockId b : layout.blocks_touching(slot, mapped)) blocks.insert(b);
    }
    EXPECT_EQ(static_cast<int>(blocks.size()), layout.max_blocks());
    EXPECT_TRUE(blocks.empty() || *blocks.rbegin() == layout.max_blocks() - 1);
  });
}

TEST(MemoryLayout, FirstMoeLayerStaysUnlessTheWeightsNeedIt) {
  Random random(7);
  ModelConfig model = small_model(random);
  model.num_experts = 16;
  model.moe_intermediate_size = 64;
  model.hidden_size = 64;
  model.layers.resize(6);
  MemoryLayoutOptions options;
  options.page_bytes = 4 * kKiB;
  options.max_offload_percent = 100;
  options.device_bytes = 64 * kMiB;
  const MemoryLayout roomy = make_memory_layout(model, options);
  EXPECT_TRUE(roomy.first_moe_layer_resident);
  EXPECT_EQ(roomy.missing_groups, 0);
  EXPECT_EQ(roomy.min_groups_out, 0);
  EXPECT_EQ(roomy.groups_per_layer, 16);
  EXPECT_EQ(roomy.max_groups_out(), 5 * 16);

  // Ten groups and their pool short. Five layers that give up k each free 5k - 2k.
  options.device_bytes =
      roomy.dense_weight_bytes + roomy.group_bytes() * (roomy.total_groups() - 10);
  const MemoryLayout tight = make_memory_layout(model, options);
  EXPECT_TRUE(tight.first_moe_layer_resident);
  EXPECT_EQ(tight.missing_groups, 10);
  EXPECT_EQ(tight.base_pool_bytes, 0u);
  EXPECT_EQ(tight.pool_slots(tight.min_groups_out), 1);

  options.max_offload_percent = 19;  // three groups a layer: 5 layers free 9, 6 layers 12
  const MemoryLayout both = make_memory_layout(model, options);
  EXPECT_FALSE(both.first_moe_layer_resident);
  EXPECT_EQ(both.order.groups.front(), (GroupId{0, 15}));

  options.max_offload_percent = 10;
  EXPECT_THROW(make_memory_layout(model, options), Error);
}

TEST(MemoryLayout, RefusalsCarryTheNumbers) {
  const ModelConfig model = load_model_config(kModelsFolder / "qwen3-next-80b-a3b");
  MemoryLayoutOptions options;
  options.device_bytes = 70 * kGiB;
  options.tensor_parallel = 2;
  options.max_offload_percent = 4;
  try {
    make_memory_layout(model, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("70.00 GiB"), testing::HasSubstr("72.00 GiB"),
                               testing::HasSubstr("4 percent")));
  }
  options.device_bytes = kGiB;
  EXPECT_THROW(make_memory_layout(model, options), Error);
  options.device_bytes = 80 * kGiB;
  for (const size_t page : {size_t{0}, size_t{3000}, 4 * kGiB}) {
    MemoryLayoutOptions bad = options;
    bad.page_bytes = page;
    EXPECT_THROW(make_memory_layout(model, bad), Error);
  }
  options.tensor_parallel = 3;
  EXPECT_THROW(make_memory_layout(model, options), Error);
}

TEST(MemoryLayout, WeightsBeyondTheBudgetStartWithGroupsGivenUp) {
  const ModelConfig model = load_model_config(kModelsFolder / "qwen3-next-80b-a3b");
  MemoryLayoutOptions options;
  options.device_bytes = 70 * kGiB;
  options.tensor_parallel = 2;
  options.max_offload_percent = 15;
  const MemoryLayout layout = make_memory_layout(model, options);
  EXPECT_GT(layout.missing_groups, 0);
  EXPECT_LT(layout.pool_slots(layout.min_groups_out - 1), 0);
  EXPECT_EQ(layout.pool_slots(layout.min_groups_out), 0);  // one block lies in the base pool
  EXPECT_GE(layout.base_blocks(), 1);
  EXPECT_LT(layout.base_pool_bytes, layout.group_bytes());
}

// Groups, shards and sizes that the paper states, and our own models' (kernels.md's table of
// sizes).
TEST(ExpertGeometry, ShardsPerGroup) {
  const ModelConfig next = load_model_config(kModelsFolder / "qwen3-next-80b-a3b");
  for (const auto& [ranks, shards] : {std::pair{1, 1}, {2, 2}, {4, 4}, {8, 8}}) {
    const ExpertGeometry experts = make_expert_geometry(next, ranks, 2 * kMiB);
    EXPECT_EQ(experts.shards_per_group, shards) << ranks;
    EXPECT_EQ(experts.group_bytes(), 6 * kMiB) << ranks;
    EXPECT_EQ(experts.expert_bytes(), 144 * kGiB / ranks) << ranks;
    EXPECT_EQ(experts.gate_up_shard_bytes, 4 * kMiB / ranks);
  }
  const ModelConfig qwen = load_model_config(kModelsFolder / "qwen3-30b-a3b");
  const ExpertGeometry experts = make_expert_geometry(qwen, 1, 2 * kMiB);
  EXPECT_EQ(experts.shards_per_group, 2);
  EXPECT_EQ(experts.group_bytes(), 18 * kMiB);
  EXPECT_EQ(experts.expert_bytes(), 54 * kGiB);
}

TEST(ExpertGeometry, PadsWhereNoSmallRunOfShardsFillsPages) {
  ModelConfig model = load_model_config(kModelsFolder / "qwen3-30b-a3b");
  model.hidden_size = 2880;  // gpt-oss: 128 shards would be needed
  model.moe_intermediate_size = 2880;
  const ExpertGeometry experts = make_expert_geometry(model, 1, 2 * kMiB);
  EXPECT_EQ(experts.shards_per_group, 1);
  EXPECT_EQ(experts.gate_up_shard_bytes, 2u * 2880 * 2880 * 2);  // whole, the padding behind down
  EXPECT_EQ(experts.shard_bytes(), 48 * kMiB);
  EXPECT_EQ(experts.down_data_bytes, 2880u * 2880 * 2);
  EXPECT_EQ(experts.groups_per_layer, 128);
}

TEST(ExpertGeometry, RatiosRoundAsThePaperDoes) {
  const ModelConfig next = load_model_config(kModelsFolder / "qwen3-next-80b-a3b");
  const ExpertGeometry experts = make_expert_geometry(next, 2, 2 * kMiB);
  EXPECT_EQ(experts.groups_for_percent(15, true), 38);   // 76 experts
  EXPECT_EQ(experts.groups_for_percent(20, true), 50);   // 100
  EXPECT_EQ(experts.groups_for_percent(20, false), 51);  // 102
  EXPECT_EQ(experts.groups_for_percent(12.5, false), 32);
  EXPECT_EQ(experts.groups_for_percent(0, false), 0);
  EXPECT_EQ(experts.groups_for_percent(100, false), 256);
}

TEST(KvBytes, OfThePapersModels) {
  const ModelConfig next = load_model_config(kModelsFolder / "qwen3-next-80b-a3b");
  EXPECT_EQ(kv_bytes_per_token(next, 1, DType::kBf16), 24'576u);
  EXPECT_EQ(kv_bytes_per_token(next, 2, DType::kBf16), 12'288u);
  EXPECT_EQ(kv_bytes_per_token(next, 4, DType::kBf16), 12'288u);  // two KV heads, copied
  EXPECT_NEAR(static_cast<double>(recurrent_state_bytes(next, 1)) / kMiB, 73.7, 0.05);
  const ModelConfig qwen = load_model_config(kModelsFolder / "qwen3-30b-a3b");
  EXPECT_EQ(kv_bytes_per_token(qwen, 1, DType::kBf16), 98'304u);
  EXPECT_EQ(recurrent_state_bytes(qwen, 1), 0u);
}

TEST(MemoryLayout, TakesAnotherOrder) {
  Random random(3);
  ModelConfig model = small_model(random);
  model.num_experts = 16;
  model.layers.resize(3);
  MemoryLayoutOptions options;
  options.page_bytes = 512;
  options.max_offload_percent = 50;
  options.device_bytes = 64 * kMiB;
  MemoryLayout layout = make_memory_layout(model, options);
  const int tail = layout.groups_per_layer - 1;
  OffloadOrder order{1, {{2, tail}, {2, tail - 1}, {1, tail}}};
  layout.set_order(order);
  EXPECT_EQ(layout.max_groups_out(), 3);
  EXPECT_EQ(layout.bank_groups(2), 2);
  EXPECT_EQ(layout.bank_groups(3), 3);
  EXPECT_EQ(layout.groups_out(2, 2), 2);
  EXPECT_EQ(layout.groups_out(2, 1), 0);
  order.groups = {{2, tail - 1}};
  EXPECT_THROW(layout.set_order(order), InvariantError);
}

}  // namespace
}  // namespace vamp
