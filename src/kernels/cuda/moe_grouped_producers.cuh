// The warps that bring tiles into shared memory. See moe_grouped.cu.
#pragma once

#include "kernels/cuda/moe_grouped_tiles.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda::grouped {

constexpr int kDrawAhead = 4;  // stages of a tile left when the next one is drawn
constexpr int kTellAhead = 2;  // and when the other warps are told of it
constexpr uint32_t kBoxBytes = kHalfRows * kDepth * 2;

// One thread, which draws tiles, tells the others of them and asks for their weights. It waits for
// nothing but room.
template <int kTokens>
class WeightsProducer {
  static constexpr int kStages = Shared<kTokens>::kStages;
  static constexpr int kBurst = kStreams<kTokens> ? 2 : 1;  // stages that are asked for together

 public:
  __device__ WeightsProducer(Shared<kTokens>& shared, const Problem& problem,
                             const CUtensorMap& gate_up, const CUtensorMap& down)
      : shared_(shared), problem_(problem), gate_up_(gate_up), down_(down) {}

  // Before the launch in front has ended: the weights of this block's own tile, if it gets one.
  __device__ void begin_early() {
    const int tiles = problem_.gate_up_tiles(), number = static_cast<int>(blockIdx.x);
    if (number >= problem_.early * tiles) return;
    Tile tile{};
    tile.expert = number / tiles;
    tile.row = number % tiles * kHalfRows;
    tile.kind = Tile::kGateUp;
    begun_ = min(kStages, problem_.steps(tile));
    begin(tile, 0, begun_);
  }
  // The first tile's number, unless it has been begun: it is on its way while the list is made.
  __device__ void draw_first() {
    if (begun_ == 0) first_ = problem_.draw();
  }

  __device__ void run(WorkList<kTokens>& list) {
    Tile tile{};
    if (begun_ > 0) {
      tile = list.early_tile(static_cast<int>(blockIdx.x));
      if (tile.kind == Tile::kTaken) {
        tile.kind = Tile::kUnused;
        tile.row = begun_;
      }
    } else {
      tile = drawn(list, first_);
    }
    list.forget_starts();
    tell(tile);
    while (tile.kind != Tile::kEnd) {
      const int steps = problem_.steps(tile), draw_at = max(begun_, steps - kDrawAhead),
                tell_at = max(begun_, steps - kTellAhead);
      begin(tile, begun_, draw_at);
      const int number = problem_.draw();
      begin(tile, draw_at, tell_at);
      const Tile next = drawn(list, number);
      tell(next);
      begin(tile, tell_at, steps);
      begun_ = 0;
      tile = next;
    }
  }

 private:
  __device__ Tile drawn(const WorkList<kTokens>& list, int number) const {
    Tile tile = list.tile(number);
    while (tile.kind == Tile::kTaken) tile = list.tile(problem_.draw());
    return tile;
  }
  __device__ void tell(const Tile& tile) {
    shared_.taken[queue_.at].wait(queue_.parity ^ 1);
    shared_.queue[queue_.at] = tile;
    shared_.queued[queue_.at].arrive();
    queue_.advance();
  }
  // Asks for the weights of stages [step, end): neighbouring columns of a row, which lie in one
  // piece of memory, right after each other.
  __device__ void begin(const Tile& tile, int step, int end) {
    const bool gate_up = tile.kind == Tile::kGateUp;
    const CUtensorMap& map = gate_up ? gate_up_ : down_;
    const int rows[2] = {tile.row, tile.row + (gate_up ? problem_.intermediate : kHalfRows)};
    for (; step < end; step += kBurst) {
      const int count = min(kBurst, end - step);
      Turn<kStages> turn = ring_;
      for (int i = 0; i < count; ++i, turn.advance()) {
        shared_.empty[turn.at].wait(turn.parity ^ 1);
        shared_.full[turn.at].arrive_expecting(2 * kBoxBytes);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        turn = ring_;
        for (int i = 0; i < count; ++i, turn.advance()) {
          (kStreams<kTokens> ? copy_box_once : copy_box)(shared_.weights[turn.at][half], map,
                                                         shared_.full[turn.at], (step + i) * kDepth,
                                                         rows[half], tile.expert);
        }
      }
      ring_ = turn;
    }
  }

  Shared<kTokens>& shared_;
  const Problem& problem_;
  const CUtensorMap &gate_up_, &down_;
  Turn<kStages> ring_;
  Turn<kQueue> queue_;
  int begun_ = 0;  // stages of the first tile
  int first_ = 0;
};

// Three warps, which bring the tokens of the same tiles: for gate and up gathered by their pairs,
// for down, which waits until all of an expert's activations are there, in order. Each thread
// copies 16 bytes of every 12th row. The next tile is looked at before this one's end.
template <int kTokens>
class TokensProducer {
  static constexpr int kStages = Shared<kTokens>::kStages;
  static constexpr int kLag = kStreams<kTokens> ? 2 : 1;  // stages begun before one is awaited

 public:
  __device__ TokensProducer(Shared<kTokens>& shared, const Problem& problem)
      : shared_(shared),
        problem_(problem),
        row_(static_cast<int>(threadIdx.x - 32) / 8),
        chunk_(static_cast<int>(threadIdx.x) % 8) {}

  __device__ void run() {
    for (Work work = take(); work.tile.kind != Tile::kEnd;) bring(work);
    finish();
  }

 private:
  static constexpr int kRowStride = kTokenThreads / 8,
                       kRows = (kTokens + kRowStride - 1) / kRowStride;
  static_assert(kRowStride % 8 == 4);
  static constexpr uint32_t kNone = 0xffffffffu;

  struct Work {
    Tile tile;
    bool ready;
    uint32_t source[kRows];  // of this thread's rows, in chunks of 16 bytes
  };

  // What an expert's count is when its activations are there.
  __device__ int all_done(const Tile& tile) const {
    return kConsumers * tile.groups * problem_.gate_up_tiles();
  }
  __device__ bool is_ready(const Tile& tile) const {
    return tile.kind != Tile::kDown || load_acquire(problem_.done(tile.expert)) >= all_done(tile);
  }
  __device__ Work take() {
    shared_.queued[queue_.at].wait(queue_.parity);
    Work work;
    const Tile tile = work.tile = shared_.queue[queue_.at];
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.taken[queue_.at].arrive();
    queue_.advance();
    const bool gate_up = tile.kind == Tile::kGateUp;
    const auto chunks =
        static_cast<uint32_t>((gate_up ? problem_.hidden : problem_.intermediate) / 8);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int t = row_ + kRowStride * i, place = tile.first + t;
      work.source[i] = kNone;
      if (t < tile.count)
        work.source[i] =
            static_cast<uint32_t>(gate_up ? problem_.pairs[place] / problem_.top_k : place) *
            chunks;
    }
    work.ready = is_ready(tile);
    return work;
  }

  // Brings `work`, and then makes the next one of it.
  __device__ void bring(Work& work) {
    const Tile tile = work.tile;
    const bool gate_up = tile.kind == Tile::kGateUp;
    int32_t* const done = problem_.done(tile.expert);
    int passed = 0;
    if (tile.kind == Tile::kDown) {
      if (!work.ready) {
        finish();
        while (!is_ready(tile)) __nanosleep(32);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) passed = atomicAdd(done, 1) + 1;
    }
    const uint4* const x =
        reinterpret_cast<const uint4*>(gate_up ? problem_.x : problem_.activation);
    const int chunks = (gate_up ? problem_.hidden : problem_.intermediate) / 8;
    const int place = row_ * 128 + ((chunk_ ^ (row_ % 8)) * 16);
    const auto bring_steps = [&](int step, int end) {
      for (; step < end; ++step) {
        shared_.empty[ring_.at].wait(ring_.parity ^ 1);
        const uint32_t to = shared_address(shared_.tokens[ring_.at]);
        const int chunk = step * (kDepth / 8) + chunk_;
        const bool inside = chunk < chunks;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          // Rows 12 apart differ in the swizzle's bit 2.
          const int at = (place ^ (i % 2 * 64)) + i * kRowStride * 128;
          if (work.source[i] != kNone)
            copy16(to + at, x + work.source[i] + (inside ? chunk : 0), inside ? 16 : 0);
        }
        commit_copies();
        if (++pending_ > kLag) {
          wait_copies<kLag>();
          finish_stage();
        }
        ring_.advance();
      }
    };
    const int steps = problem_.steps(tile), ahead = max(0, steps - kTellAhead);
    bring_steps(0, ahead);
    Work next;
    const bool looked = kStreams<kTokens> && shared_.queued[queue_.at].ended(queue_.parity);
    if (looked) next = take();
    bring_steps(ahead, steps);
    // The last of the warps that go on leaves the count as it was before the launch.
    if (passed > 0 && passed == all_done(tile) + kTokenWarps * tile.groups * problem_.down_tiles())
      *done = 0;
    if (!looked) {
      if (!shared_.queued[queue_.at].ended(queue_.parity)) finish();
      next = take();
    }
    work = next;
  }

  __device__ static int load_acquire(const int32_t* place) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
    return value;
  }
  __device__ void finish() {
    wait_copies<0>();
    while (pending_ > 0) finish_stage();
  }
  __device__ void finish_stage() {
    fence_async_shared();
    shared_.full[done_.at].arrive();
    done_.advance();
    --pending_;
  }

  Shared<kTokens>& shared_;
  const Problem& problem_;
  const int row_, chunk_;
  Turn<kStages> ring_, done_;
  Turn<kQueue> queue_;
  int pending_ = 0;
};

}  // namespace vamp::cuda::grouped
