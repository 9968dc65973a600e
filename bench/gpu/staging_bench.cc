// What given-up experts cost a step of Qwen3-30B-A3B: all layers with experts behind a real
// boundary, random weights, contexts of 4k. For r percent of each layer's experts given up, beside
// the same step with all resident:
//
//   region   an eager step; the copy engine brings every layer's whole region, a layer ahead
//   gather   a captured graph; a kernel brings those that tokens chose, between router and experts
//   beside   the same, while the products of the experts that are there run
//
//   gpu_staging_bench [PERCENT ...]      5 15 25
//
// Last line: one JSON object.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/random.h"
#include "gpu/qwen3_step.h"
#include "memory/cuda/cuda_staging.h"
#include "memory/cuda/cuda_virtual_memory.h"
#include "memory/cuda/expert_gather.h"

using namespace vamp;
using namespace vamp::cuda;

namespace {

constexpr double kLinkBytesPerUs = 55.4e3;  // copy engine, 256-MiB copies, H200 behind PCIe 5
constexpr int kLayers = 48, kContext = 4096, kMaxBatch = 64;

// Every expert is the same random values.
class OneExpert final : public HostExperts {
 public:
  explicit OneExpert(size_t bytes) : bytes_(bytes / 2) {
    Random random(1);
    for (uint16_t& value : bytes_) {  // bf16 of about +-0.02
      const auto word = static_cast<uint16_t>(random.next());
      value = static_cast<uint16_t>(0x3c00 | (word & 0x80ff));
    }
  }
  void copy(int, int, int count, std::byte* to) const override {
    const size_t size = bytes_.size() * 2;
    for (int i = 0; i < count; ++i, to += size) std::memcpy(to, bytes_.data(), size);
  }

 private:
  std::vector<uint16_t> bytes_;
};

MemoryLayout make_layout(int most_percent) {
  MemoryLayout layout;
  layout.page_bytes = 2 * kMiB;
  layout.moe_layers = kLayers;
  layout.experts = Qwen3Step::kMoe.experts;
  layout.gate_up_shard_bytes = 6 * kMiB;
  layout.down_shard_bytes = 3 * kMiB;
  layout.shards_per_group = 2;
  layout.groups_per_layer = layout.experts / 2;
  layout.max_groups_out_per_layer = layout.groups_per_layer * most_percent / 100;
  layout.first_moe_layer_resident = false;
  layout.block_bytes = 1536 * kKiB;
  layout.base_pool_bytes = 64 * kMiB;
  layout.set_order(round_robin_order(layout, layout.max_groups_out_per_layer, false));
  return layout;
}

void move_to(HbmPartition& partition, int groups_out) {
  PartitionTarget target{groups_out, 0, {}, {}};
  const int now = partition.kv().mapped_slots(), then = partition.layout().pool_slots(groups_out);
  for (int slot = now; slot < then; ++slot) target.map_slots.push_back(slot);
  for (int slot = then; slot < now; ++slot) target.unmap_slots.push_back(slot);
  partition.move(target);
}

double eager_us(const std::function<void(cudaStream_t)>& work,
                const std::function<void()>& end_step) {
  CudaStream stream;
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    CudaEvent begin(CudaEvent::Kind::kTiming), end(CudaEvent::Kind::kTiming);
    begin.record(stream.get());
    work(stream.get());
    end.record(stream.get());
    stream.synchronize("a step");
    end_step();
    if (i >= 2) times.push_back(begin.micros_to(end));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::string json;
void report(const char* routing, int batch, int percent, const char* how, double us,
            double resident, double bytes) {
  const double link = bytes / kLinkBytesPerUs;
  fmt::print(
      "{:<7} batch {:>3}, {:>2}% out, {:<6} {:>8.2f} ms, resident {:>6.2f}, link {:>7.2f}: "
      "{:>6.2f} ms not hidden\n",
      routing, batch, percent, how, us / 1e3, resident / 1e3, link / 1e3,
      (us - std::max(link, resident)) / 1e3);
  std::fflush(stdout);
  json += fmt::format("{}\"{} {} {}% {}\":[{:.3f},{:.3f},{:.3f}]", json.empty() ? "" : ",", routing,
                      batch, percent, how, us / 1e3, resident / 1e3, link / 1e3);
}

void run(const std::vector<int>& percents) {
  CudaVirtualMemory memory(0);
  const MemoryLayout layout = make_layout(*std::max_element(percents.begin(), percents.end()));
  const OneExpert source(layout.shard_bytes());
  fmt::print("loading {:.0f} GiB of experts, pinning {:.1f} GiB\n",
             static_cast<double>(layout.expert_bytes()) / kGiB,
             static_cast<double>(layout.max_groups_out() * layout.group_bytes()) / kGiB);
  std::fflush(stdout);
  const PinnedExperts pinned(layout, source);
  HbmPartition partition(layout, 0, memory, pinned);
  const auto weights = [&](int l) {
    const std::byte* first = partition.experts().expert(l, 0);
    return MoeWeights{first, first + layout.gate_up_shard_bytes, layout.shard_bytes(),
                      layout.shard_bytes(), DType::kBf16};
  };
  for (const float skew : {0.0f, 1.0f}) {
    Qwen3Step model(kLayers, kMaxBatch * kContext, skew, weights);
    ExpertGather gather(partition, pinned);
    CudaStaging staging(partition, pinned);
    const char* routing = skew == 0 ? "even" : "skewed";
    for (const int batch : {1, 4, 16, 64}) {
      model.set_batch(batch, 1, kContext);
      move_to(partition, 0);
      model.before_experts = model.after_experts = {};
      const auto step = [&](cudaStream_t s) { model.step(s); };
      const double graph = graph_us(step, 9), eager = eager_us(step, [] {});
      for (const int percent : percents) {
        move_to(partition, layout.groups_per_layer * percent / 100 * kLayers);
        gather.update(nullptr);
        model.before_experts = [&](int l, cudaStream_t s) {
          gather.gather(l, model.moe().routing().expert_start, s);
        };
        gather.take_staged_bytes(nullptr);
        constexpr int kReplays = 9;
        const double gathered = graph_us(step, kReplays);
        const double bytes =
            static_cast<double>(gather.take_staged_bytes(nullptr)) / (kReplays + 3);
        report(routing, batch, percent, "gather", gathered, graph, bytes);
        model.before_experts = {};
        model.staged = {[&](int l) { return gather.first_given_up(l); },
                        [&](int l, cudaStream_t s) {
                          gather.gather(l, model.moe().routing().expert_start, s);
                        }};
        report(routing, batch, percent, "beside", graph_us(step, kReplays), graph, bytes);
        model.staged = {};
        if (skew == 0) {
          model.before_experts = [&](int l, cudaStream_t s) { staging.wait(l, s); };
          model.after_experts = [&](int l, cudaStream_t s) { staging.release(l, s); };
          double region_bytes = 0;
          const double region = eager_us(
              [&](cudaStream_t s) {
                for (int l = 0; l < kLayers; ++l) staging.begin_region(l);
                model.step(s);
              },
              [&] { region_bytes = static_cast<double>(staging.end_step().staged_bytes); });
          report(routing, batch, percent, "region", region, eager, region_bytes);
        }
        model.before_experts = model.after_experts = {};
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> percents;
  for (int i = 1; i < argc; ++i) {
    const int percent = std::atoi(argv[i]);
    if (percent < 1 || percent > 90) {
      fmt::print(stderr, "gpu_staging_bench {}: percents of 1 to 90\n", argv[i]);
      return 2;
    }
    percents.push_back(percent);
  }
  run(percents.empty() ? std::vector<int>{5, 15, 25} : percents);
  fmt::print("{{{}}}\n", json);
  return 0;
}
