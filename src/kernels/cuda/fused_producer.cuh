// What a block of the fused decode step reads, in the order in which it will need it: its share of
// each layer's dense weights, of the contexts, of the chosen experts.
//
// One warp, the producer, does nothing but ask for it: the copy unit brings it to the ring, as far
// ahead as there are free stages, over the borders of tiles, operations and layers, since nobody in
// the launch writes what is copied. It can't pass a layer's router: there it waits for the block to
// know which experts come next.
#pragma once

#include "kernels/cuda/fused_stream.cuh"
#include "kernels/cuda/tensor_map.h"

namespace vamp::cuda::fused {

// The producer's walk through all layers.
template <typename Kind>
class Producer {
  static constexpr int kHeadDim = Kind::kHeadDim, kPageTokens = Kind::kPageTokens;
  static_assert(4 * kHeadDim * kPageTokens == kPageBytes);

 public:
  __device__ Producer(const Args& a, const CUtensorMap& contexts, Ring& ring, const Items& items,
                      const Unit& unit)
      : a_(a),
        contexts_(contexts),
        ring_(ring),
        items_(items),
        unit_(unit),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    at_.parity = 1;  // the first wait for a stage is for its being new
    if (unit.token >= 0) first_pages_ = find_page(unit.first + lane_);
  }

  __device__ void run() {
#pragma unroll 1
    for (int l = 0; l < a_.count; ++l) {
      const FusedDecode::Layer& layer = a_.layers[l];
      const bool delta = Kind::kMixed && layer.has_delta();
      const FusedDecode::Maps& maps = a_.maps[l];
      if (l + 1 < a_.count && lane_ < static_cast<int>(sizeof(maps) / sizeof(CUtensorMap)))
        prefetch_map(reinterpret_cast<const CUtensorMap*>(a_.maps + l + 1)[lane_]);
#pragma unroll 1
      for (int part = kIn; part <= kDown; ++part) {
        if (part == kContext) {
          if (delta)
            states(layer);
          else if (unit_.token >= 0)
            context(static_cast<int>(layer.cache_layer));
          continue;
        }
        if (part == kGateUp) {
          if (l + 1 < a_.count) prefetch_vectors(a_.layers[l + 1]);
          ring_.chosen.wait(static_cast<uint32_t>(l) & 1);
          if (lane_ == 0) draw_tiles(maps.gate_up, a_.drawn + l);
          continue;
        }
        const bool down = part == kDown;
        const CUtensorMap& map = part == kIn       ? maps.in
                                 : part == kOut    ? maps.out
                                 : part == kRouter ? maps.router
                                                   : maps.down;
        const int groups = part == kIn       ? input_rows(a_, delta) / 8
                           : part == kRouter ? a_.router_rows / 8
                                             : kHidden / 8;
        const int K = part == kOut ? a_.out_width : kHidden;
        const Run run = share_of_block(a_, groups);
#pragma unroll 1
        for (int i = run.first; i < run.end; i += 2) {
          const int high = i + 1 < run.end ? i * 8 + 8 : -1;
          if (down)
            experts_rows(map, i * 8, high);
          else
            rows_of(map, 0, i * 8, high, K);
        }
      }
    }
  }

 private:
  enum Part { kIn, kContext, kOut, kRouter, kGateUp, kDown };

  // A line of the cache of each norm's weights, and of given logits, to L2: a block one of them.
  __device__ void prefetch_vectors(const FusedLayer& layer) {
    constexpr int kLine = 32;  // floats
    const int line = static_cast<int>(blockIdx.x) * kLine;
    const float* weight = lane_ == 0   ? layer.input_norm
                          : lane_ == 1 ? layer.post_norm
                          : lane_ == 2 ? layer.q_norm
                          : lane_ == 3 ? layer.k_norm
                                       : nullptr;
    int length = lane_ < 2 ? kHidden : kHeadDim;
    if (Kind::kMixed && lane_ >= 4) {
      weight = lane_ == 4   ? layer.delta.norm
               : lane_ == 5 ? layer.delta.a_log
               : lane_ == 6 ? layer.delta.dt_bias
                            : nullptr;
      length = lane_ == 4 ? kDeltaDim : a_.shape.delta.value_heads;
    }
    if (lane_ == 7) {
      weight = layer.logits;
      length = a_.tokens * a_.shape.moe.experts;
    }
    if (weight && line < length) asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + line));
  }
  // Gate and up of the chosen experts, a tile 8 rows of each. Most are shared out evenly;
  // multiprocessors are not equally fast, so the last ones are drawn. Lane 0.
  __device__ void draw_tiles(const CUtensorMap& map, uint32_t* drawn) {
    const int I = a_.shape.moe.intermediate, per_item = I / 8, all = items_.count * per_item;
    const int blocks = static_cast<int>(gridDim.x);
    const auto even = static_cast<int>(__umulhi(static_cast<uint32_t>(all), a_.blocks_inverse));
    const int own = even - (even + 7) / 8;
    const auto draw = [&] { return blocks * own + static_cast<int>(atomicAdd(drawn, 1u)); };
    int tile = own > 0 ? static_cast<int>(blockIdx.x) * own : draw();
#pragma unroll 1
    for (int n = 1; tile < all; ++n) {
      const int next = n < own ? tile + 1 : draw();  // there when this one has been asked for
      const int item = tile / per_item, row = (tile - item * per_item) * 8;
      ring_.empty[at_.at].wait(at_.parity);
      ring_.tile[at_.at] = tile;
      rows_of(map, items_.expert[item], row, row + I, kHidden);
      tile = next;
    }
    ring_.empty[at_.at].wait(at_.parity);
    ring_.tile[at_.at] = -1;
    ring_.full[at_.at].arrive();
    at_.pass();
  }
  // 8 rows from `low` on and 8 from `high` on (-1: none), K values each, of an expert's matrix. By
  // lane 0 alone: copies of several lanes are issued one by one anyway.
  __device__ void rows_of(const CUtensorMap& map, int expert, int low, int high, int K) {
    if (lane_ != 0) return;
#pragma unroll 1
    for (int k = 0; k < K; k += kStageValues) {
      Barrier& full = begin_stage(16 * min(K, kStageValues) * (high < 0 ? 1 : 2));
      copy_rows(map, full, 0, expert, low, high, k);
      at_.pass();
    }
  }
  // The same of down, of all experts.
  __device__ void experts_rows(const CUtensorMap& map, int low, int high) {
    if (lane_ != 0) return;
    const int I = a_.shape.moe.intermediate, of_expert = units_of_expert(I),
              of_copy = units_of_copy(I), all = items_.count * of_expert;
    const int values = min(I, of_copy * kUnitValues);  // of a copy
    int item = 0, unit = 0;
#pragma unroll 1
    for (int first = 0; first < all; first += kStageUnits) {
      const int units = min(kStageUnits, all - first);
      Barrier& full = begin_stage(16 * (units / of_copy) * values * (high < 0 ? 1 : 2));
#pragma unroll 1
      for (int u = 0; u < units; u += of_copy) {
        copy_rows(map, full, u * kUnitValues, items_.expert[item], low, high, unit * kUnitValues);
        if ((unit += of_copy) == of_expert) {
          unit = 0;
          ++item;
        }
      }
      at_.pass();
    }
  }
  __device__ __forceinline__ void copy_rows(const CUtensorMap& map, Barrier& full, int to,
                                            int expert, int low, int high, int col) {
    char* const place = ring_.stages[at_.at] + to * 16;
    copy(place, map, full, low, col, expert);
    if (high >= 0) copy(place + kHalfStageBytes, map, full, high, col, expert);
  }
  // The stage is free, and so is the way to it: of those in front only so many bytes may still be
  // coming.
  __device__ Barrier& begin_stage(int bytes) {
    ring_.empty[at_.at].wait(at_.parity);
    const int together = bytes > kStageBytes / 2   ? kBytesInFlight / kStageBytes
                         : bytes > kStageBytes / 4 ? kBytesInFlight / (kStageBytes / 2)
                                                   : kStages;
    if (together < kStages) {
      Position landed = at_;
      if ((landed.at -= together) < 0) {
        landed.at += kStages;
        landed.parity ^= 1;
      }
      ring_.full[landed.at].wait(landed.parity ^ 1);
    }
    ring_.full[at_.at].arrive_expecting(static_cast<uint32_t>(bytes));
    return ring_.full[at_.at];
  }
  // Where a page of the block's run is in the arena, in values, but for the layer.
  __device__ int64_t find_page(int page) const {
    const KvLayout& layout = a_.batch.cache.layout;
    const int32_t* ids = a_.batch.attention.block_ids + a_.batch.attention.block_start[unit_.token];
    const int token = page * kPageTokens;
    if (page >= unit_.end) return 0;
    return ids[token / layout.block_tokens] * layout.block_stride() +
           layout.k_offset(0, unit_.kv_head, token % layout.block_tokens);
  }
  // The block's pages, keys, then values: a lane each of 32 of them, of which the first ones are
  // the same in all layers.
  __device__ void context(int layer) {
    const KvLayout& layout = a_.batch.cache.layout;
    const auto of_layer = static_cast<int>(
        (layout.k_offset(layer, unit_.kv_head, 0) - layout.k_offset(0, unit_.kv_head, 0)) /
        kHeadDim);
    const auto to_values = static_cast<int>(layout.v_offset() / kHeadDim);
    at_.at = __shfl_sync(0xffffffffu, at_.at, 0);
    at_.parity = __shfl_sync(0xffffffffu, at_.parity, 0);
#pragma unroll 1
    for (int first = unit_.first; first < unit_.end; first += 32) {
      const int64_t place = first == unit_.first ? first_pages_ : find_page(first + lane_);
      const int row = static_cast<int>(place / kHeadDim) + of_layer;
      const int pages = min(32, unit_.end - first);
#pragma unroll 1
      for (int s = 0; s < pages; s += kStagePages) {
        const int here = min(kStagePages, pages - s);
        Barrier& full = ring_.full[at_.at];
        if (lane_ == 0) {
          ring_.empty[at_.at].wait(at_.parity);
          full.arrive_expecting(static_cast<uint32_t>(here * kPageBytes));
        }
        __syncwarp();
        if (lane_ >= s && lane_ < s + here) {
          char* const to = ring_.stages[at_.at] + (lane_ - s) * kPageBytes;
          copy(to, contexts_, full, row, 0, 0);
          copy(to + kPageBytes / 2, contexts_, full, row + to_values, 0, 0);
        }
        __syncwarp();
        at_.pass();
      }
    }
  }
  // The states of the block's units, whose convolutions' weights and inputs come to L2.
  __device__ void states(const FusedLayer& layer) {
    const GatedDeltaShape& shape = a_.shape.delta;
    const int units = delta_units(a_);
#pragma unroll 1
    for (int u = static_cast<int>(blockIdx.x); u < units; u += static_cast<int>(gridDim.x)) {
      const DeltaUnit unit(a_, u);
      const int part = lane_ % 4;  // q, k, v
      const int first = part < 2 ? (part * shape.key_heads + unit.key) * kDeltaDim
                                 : 2 * shape.key_heads * kDeltaDim + unit.head * kDeltaDim +
                                       unit.quarter * kQuarter,
                channels = part < 2 ? kDeltaDim : kQuarter;
      if (lane_ < 8 && part < 3) {
        if (lane_ < 4)
          prefetch(layer.delta.conv + first * kDeltaWidth, channels * kDeltaWidth * 4);
        else
          prefetch(unit.conv_state(a_, layer, first), channels * (kDeltaWidth - 1) * 2);
      }
      if (lane_ == 0) {
        Barrier& full = ring_.full[at_.at];
        ring_.empty[at_.at].wait(at_.parity);
        full.arrive_expecting(kStateBytes);
        copy_bytes(ring_.stages[at_.at], unit.state(a_, layer), kStateBytes, full, kReadOnce);
        at_.pass();
      }
      __syncwarp();
    }
  }
  __device__ static void prefetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
  }
  __device__ static void copy(void* to, const CUtensorMap& map, Barrier& full, int row, int col,
                              int matrix) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&full.state)), "r"(0), "r"(row), "r"(col / kTensorMapCols),
        "r"(matrix), "l"(kReadOnce)
        : "memory");
  }

  // A cache policy (createpolicy.fractional.L2::evict_first): a step reads everything once, and the
  // code of the kernels and what blocks tell each other should stay in L2.
  static constexpr uint64_t kReadOnce = 0x12f0000000000000;

  const Args& a_;
  const CUtensorMap& contexts_;
  Ring& ring_;
  const Items& items_;
  const Unit& unit_;
  const int lane_;
  Position at_;
  int64_t first_pages_ = 0;
};

}  // namespace vamp::cuda::fused
