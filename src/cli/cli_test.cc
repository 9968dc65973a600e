#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/units.h"
#include "cli/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kModels = std::string(VAMP_SOURCE_DIR) + "/tests/data/models/";
const std::string kNext = kModels + "qwen3-next-80b-a3b";

json inspect(std::vector<std::string> args) {
  args.insert(args.begin(), "inspect");
  args.push_back("--json");
  const CommandResult ran = run_command(args);
  EXPECT_EQ(ran.code, 0) << ran.err;
  return json::parse(ran.out);
}

json ratio(const json& plan, double percent) {
  for (const json& entry : plan["ratios"]) {
    if (entry["percent"] == percent) return entry;
  }
  return {};
}

double gib(const json& bytes) {
  return bytes.get<double>() / static_cast<double>(kGiB);
}

TEST(Cli, VersionAndHelp) {
  EXPECT_EQ(run_command({"--version"}).out, "vamp 0.1.0\n");
  EXPECT_THAT(run_command({"--help"}).out, HasSubstr("inspect"));
  EXPECT_EQ(run_command({"inspect", "--help"}).code, 0);
}

TEST(Cli, FaultsAreOneLineAndCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> faults = {
      {{}, "subcommand"},
      {{"frobnicate"}, "frobnicate"},
      {{"inspect"}, "model"},
      {{"inspect", ""}, "model: the value is empty"},
      {{"replay", "", "--trace", "x"}, "model: the value is empty"},
      {{"replay", "m", "--trace", ""}, "--trace: the value is empty"},
      {{"replay", "m", "--trace", "--output", "x"}, "--trace: '--output' is a flag"},
      {{"replay", "m", "--trace", "x", "--gpu", "h200"}, "--gpu says nothing to --executor cpu"},
      {{"inspect", "/nonexistent"}, "/nonexistent: no such folder"},
      {{"inspect", kModels}, "config.json: No such file"},
      {{"inspect", kNext, "--gpu", "voodoo"}, "unknown GPU 'voodoo': use one of h100-pcie-94g"},
      {{"inspect", kNext, "--gpu", "h200", "--device-memory", "2GiB"}, "--device-memory"},
      {{"inspect", kNext, "--device-memory", "lots"}, "'lots' is not a size"},
      {{"inspect", kNext, "--device-memory", "2GiB"}, "2.00 GiB of device memory do not hold"},
      {{"inspect", kNext, "-tp", "3"}, "over 3 ranks"},
      {{"inspect", kNext, "-tp", "0"}, "--tensor-parallel-size: '0' must be"},
      {{"inspect", kNext, "--block-size", "016"}, "--block-size: '016' must be"},
      {{"inspect", kNext, "--block-size", "0x10"}, "--block-size: '0x10' must be"},
      {{"inspect", kNext, "--gpu", ""}, "--gpu: the value is empty"},
      {{"replay", kNext, "--trace", "sweep:kv=1GiB", "--device-memory", "1000TiB"},
       "1000.00 TiB of device memory and 0 B of host tier are more than this machine's"},
      {{"inspect", kNext, "--block-size", "-16"}, "--block-size: '-16' must be"},
      {{"inspect", kNext, "--max-offload-ratio", "nan"}, "--max-offload-ratio: 'nan' must be"},
      {{"inspect", kNext, "-tp", "two"}, "two"},
      {{"inspect", kNext, "--gpu-memory-utilization", "0.9"}, "--gpu"},
      {{"inspect", kNext, "--gpu", "h200", "--gpu-memory-utilization", "9"}, "utilization"},
      {{"inspect", kNext, "--max-offload-ratio", "101"}, "0 to 100"},
      {{"inspect", kNext, "--page-size", "3MB"}, "power of two"},
  };
  for (const auto& [args, message] : faults) {
    const CommandResult ran = run_command(args);
    EXPECT_EQ(ran.code, 2) << message;
    EXPECT_THAT(ran.err, AllOf(StartsWith("vamp: error: "), HasSubstr(message)));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.out, "") << message;
  }
}

TEST(Cli, OutputThatCannotBeWrittenIsAFault) {
  const char* argv[] = {"vamp", "inspect", kNext.c_str()};
  std::ostringstream out, err;
  out.setstate(std::ios::badbit);  // as std::cout of a full disk
  EXPECT_EQ(run_cli(3, argv, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr("standard output"));
}

// The paper's first platform: Qwen3-Next-80B on H100s of 94 GiB under TP2.
TEST(Inspect, PapersFiguresOnTheH100s) {
  const json plan =
      inspect({kNext, "--gpu", "h100-pcie-94g", "-tp", "2", "--gpu-memory-utilization", "0.90"});
  EXPECT_EQ(plan["group_bytes"], 6 * kMiB);
  EXPECT_EQ(plan["shards_per_group"], 2);
  EXPECT_EQ(plan["experts_bytes_per_gpu"], 72 * kGiB);
  EXPECT_NEAR(gib(plan["kv_pool_bytes_per_gpu"]), 8.02, 0.01);
  EXPECT_EQ(plan["kv_bytes_per_token_per_gpu"], 12'288);
  EXPECT_EQ(plan["block_bytes_per_gpu"], 192 * kKiB);
  const json at15 = ratio(plan, 15), at20 = ratio(plan, 20), at25 = ratio(plan, 25);
  EXPECT_EQ(at15["groups_per_layer"], 38);
  EXPECT_NEAR(gib(at15["gained_bytes"]), 10.46, 0.006);
  EXPECT_NEAR(gib(at15["bank_bytes"]), 0.45, 0.006);
  EXPECT_EQ(at15["groups"], 38 * 47);
  EXPECT_EQ(at15["increments"], 447);
  EXPECT_EQ(at15["last_increment_groups"], 2);
  EXPECT_NEAR(gib(at20["gained_bytes"]), 13.77, 0.006);
  EXPECT_NEAR(gib(at20["gained_bytes_unrounded"]), 14.04, 0.006);
  EXPECT_NEAR(gib(at25["bank_bytes"]), 0.75, 0.006);
  EXPECT_NEAR(gib(plan["kv_pool_bytes_per_gpu"]) + gib(at15["gained_bytes"]), 18.5, 0.05);
  EXPECT_NEAR(gib(plan["kv_pool_bytes_per_gpu"]) + gib(at20["gained_bytes"]), 21.8, 0.05);
}

TEST(Inspect, PapersFiguresOnTheH200s) {
  const json plan = inspect({kNext, "--gpu", "h200-nvl", "-tp=4"});  // its 0.90 is the preset's
  EXPECT_EQ(plan["group_bytes"], 6 * kMiB);
  EXPECT_EQ(plan["shards_per_group"], 4);
  EXPECT_EQ(plan["experts_bytes_per_gpu"], 36 * kGiB);
  EXPECT_NEAR(gib(plan["kv_pool_bytes_per_gpu"]), 86.92, 0.01);
}

TEST(Inspect, TableHoldsTheSameFigures) {
  const CommandResult ran = run_command({"inspect", kNext, "--gpu", "h100-pcie-94g", "-tp", "2"});
  EXPECT_EQ(ran.code, 0);
  for (const char* text :
       {"6.00 MiB", "2 shards", "72.00 GiB", "8.02 GiB", "10.46 GiB", "13.77 GiB", "14.04 GiB"}) {
    EXPECT_THAT(ran.out, HasSubstr(text));
  }
}

TEST(Inspect, WithoutABudgetThereIsNoPool) {
  const json plan = inspect({kModels + "qwen3-30b-a3b/config.json", "--max-offload-ratio", "15",
                             "--max-offload-ratio", "12.5"});
  EXPECT_TRUE(plan["kv_pool_bytes_per_gpu"].is_null());
  EXPECT_EQ(plan["ratios"].size(), 2u);
  EXPECT_EQ(plan["ratios"][1]["percent"], 12.5);
}

// 148 GiB of weights on one H200: it starts with experts given up, and inspect says from which
// ratio.
TEST(Inspect, WeightsBeyondTheBudget) {
  const json plan = inspect({kNext, "--gpu", "h200"});
  EXPECT_GT(plan["missing_groups"], 0);
  const int percent = plan["least_offload_percent"];
  EXPECT_GT(percent, 10);
  EXPECT_LT(percent, 25);
  EXPECT_LT(plan["kv_pool_bytes_per_gpu"], plan["group_bytes"]);
  EXPECT_THAT(run_command({"inspect", kNext, "--gpu", "h200"}).out,
              HasSubstr("from VAMP-" + std::to_string(percent)));
}

}  // namespace
}  // namespace vamp
