// `vamp replay` from the command line to its files, on the simulated executor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/test_support.h"

namespace vamp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class ReplayCommand : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  CommandResult run(std::vector<std::string> flags,
                    const std::vector<std::string>& executor = {"sim", "--gpu", "h200-nvl"}) {
    std::vector<std::string> args = {"replay", model_, "--output", folder_, "--executor"};
    args.insert(args.end(), executor.begin(), executor.end());
    args.insert(args.end(), flags.begin(), flags.end());
    return run_command(args);
  }
  nlohmann::json results() const {
    return nlohmann::json::parse(std::ifstream(folder_ + "/results.json"));
  }
  std::string trace_of(const std::string& text) {
    std::filesystem::create_directories(folder_);
    const std::string path = folder_ + "/trace.jsonl";
    std::ofstream(path) << text;
    return path;
  }

  const std::string model_ = VAMP_SOURCE_DIR "/tests/golden/qwen3_moe";
  const std::string folder_ =
      std::filesystem::temp_directory_path() / fmt::format("vamp_replay_command_{}", getpid());
};

// Sessions that outgrow the pool: past the cliff with a static split, not with ours. Twice the
// same.
TEST_F(ReplayCommand, SweepPastTheCliffIsTheSameToTheBit) {
  const std::vector<std::string> flags = {"--trace",
                                          "sweep:sessions=8,kv=1MiB,turns=6,output=8",
                                          "--kv-cache-memory-bytes",
                                          "4MiB",
                                          "--kv-offloading-size",
                                          "64MiB",
                                          "--policy",
                                          "static,priced",
                                          "--max-num-seqs",
                                          "2",
                                          "--max-num-batched-tokens",
                                          "512"};
  const CommandResult first = run(flags);
  ASSERT_EQ(first.code, 0) << first.err;
  const nlohmann::json once = results();
  ASSERT_EQ(once["runs"].size(), 2u);
  for (const auto& report : once["runs"]) {
    EXPECT_EQ(report["turns"], 48);
    EXPECT_EQ(report["failed_turns"], 0);
  }
  EXPECT_EQ(once["answers"]["compared"], 48);
  EXPECT_EQ(once["answers"]["identical"], 48);
  EXPECT_LT(once["runs"][0]["prefix_hit_rate_warm"], once["runs"][1]["prefix_hit_rate_warm"]);
  ASSERT_EQ(run(flags).code, 0);
  EXPECT_EQ(results(), once);
  for (const char* name : {"report.html", "results.sqlite"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + name));
  }
}

TEST_F(ReplayCommand, FaultsOfTheUserAreOneLineAndCode2) {
  const std::string row =
      R"({"session_id":"a","input_length":64,"output_length":3,"hash_ids":[1]})";
  const auto fails = [&](std::vector<std::string> flags, const std::string& why) {
    const CommandResult outcome = run(std::move(flags));
    EXPECT_EQ(outcome.code, 2) << why;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("vamp: error: "), HasSubstr(why)));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/results.json"));
  };
  fails({"--trace", "/nowhere/trace.jsonl"}, "no such file");
  fails({"--trace", trace_of(row + "\n{\"session_id\":5}\n")}, "line 2");
  fails({"--trace", trace_of(row), "--policy", "static,best"}, "unknown policy 'best'");
  fails({"--trace", trace_of(row), "--policy", "static,paper,static"}, "static is named twice");
  fails({"--trace", trace_of(row), "--threads", "2"}, "--threads says nothing to --executor sim");
  fails({"--trace", "/dev/zero"}, "neither a file, a pipe nor a folder");
  fails({"--trace", trace_of(row), "--max-trace-bytes", "10"}, "--max-trace-bytes");
  fails({"--trace", trace_of(row), "--max-trace-bytes", "some"}, "--max-trace-bytes");
  fails({"--trace", trace_of(row), "--device-memory", "1GiB", "--kv-cache-tokens", "9"},
        "--device-memory excludes --kv-cache-tokens");
  fails({"--trace", trace_of(row), "--window", "soon"}, "--window soon");
  fails({"--trace", trace_of(row), "--admission", "never"}, "--admission never");
  fails({"--trace", trace_of(row), "--own-replies"}, "--token-scale");
  fails({"--trace", trace_of(row), "--drop-shortest", "1"}, "only 1 sessions");
  fails({"--trace", "sweep:sessions=x"}, "sessions=x is not a number");
  fails({"--trace", "sweep:sessions=5x"}, "sessions=5x is not a number");
  fails({"--trace", "sweep:sessions=1000000000,kv=1MiB"}, "from 1 to 100000");
  fails({"--trace", "sweep:kv=1MiB,first=nan"}, "first=nan is not a number");
  fails({"--trace", "sweep:kv=9000000TiB"}, "kv: '9000000TiB' is not a size");
  fails({"--trace", "sweep:kv=800TiB"}, "too much");
  fails({"--trace", trace_of(row), "--device-memory", "0"}, "--device-memory 0: expected more");
  fails({"--trace", trace_of(row), "--kv-offloading-size", "1e9GiB"}, "--kv-offloading-size");
  fails({"--trace", trace_of(row), "--kv-cache-memory-bytes", "-2GiB"}, "--kv-cache-memory-bytes");
  for (const char* flag : {"--sessions",
                           "--max-sessions",
                           "--max-turns",
                           "--drop-shortest",
                           "--stagger",
                           "--token-scale",
                           "--think-scale",
                           "--think-time",
                           "--think-cap",
                           "--think-jitter",
                           "--output-len",
                           "--max-output-len",
                           "--first-prompt-tokens",
                           "--turn-tokens",
                           "--max-seconds",
                           "--trace-block-size",
                           "--kv-cache-tokens",
                           "--max-offload-ratio",
                           "--block-size",
                           "--max-num-seqs",
                           "--max-num-batched-tokens",
                           "--max-model-len",
                           "--threads",
                           "--tensor-parallel-size",
                           "--seed",
                           "--gpu-memory-utilization"}) {
    for (const char* value : {"-1", "nan", "-inf", "1e400", "99999999999999999999", "many"}) {
      fails({"--trace", trace_of(row), std::string(flag) + "=" + value}, flag);
    }
  }
}

void interrupt_what_comes() {
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
  raise(SIGINT);
}

// Ctrl-C is waiting when the first run begins: that run ends, no other begins, the report is there.
TEST_F(ReplayCommand, CtrlCKeepsWhatWasMeasured) {
  interrupt_what_comes();
  const CommandResult outcome = run({"--trace", "sweep:sessions=2,kv=1MiB"});
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  ASSERT_EQ(results()["runs"].size(), 1u);
  EXPECT_THAT(results()["runs"][0]["cut"].get<std::string>(), StartsWith("interrupted"));
}

TEST_F(ReplayCommand, CtrlCEndsTheLoadingOfTheModel) {
  interrupt_what_comes();
  const CommandResult outcome =
      run({"--trace", "sweep:sessions=2,kv=1MiB"}, {"cpu", "--threads", "1"});
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST(InterruptWatch, ASecondCtrlCEndsTheProgram) {
  const auto twice = [] {
    InterruptWatch watch;
    raise(SIGINT);
    if (!watch.requested()) _exit(1);
    raise(SIGINT);
    _exit(0);
  };
  EXPECT_EXIT(twice(), testing::KilledBySignal(SIGINT), "");
}

// A file size limit stands for a full disk.
TEST_F(ReplayCommand, AFullDiskIsOneLineAndLeavesNothing) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const CommandResult outcome = run({"--trace", "sweep:sessions=2,kv=1MiB"});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("cannot write"), HasSubstr("--output")));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

// However small the blocks: they are counted for the pool asked for, not for the one that serves to
// learn the model's size.
TEST_F(ReplayCommand, APoolOfTokensTakesBlocksOfOneToken) {
  const std::string trace =
      trace_of(R"({"session_id":"a","input_length":64,"output_length":3,"hash_ids":[1]})");
  const CommandResult outcome = run(
      {"--trace", trace, "--kv-cache-tokens", "256", "--block-size", "1", "--policy", "static"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(results()["runs"][0]["failed_turns"], 0);
}

// With a look at Ctrl-C ten times a virtual second this would take hours: the test's own time limit
// is the check.
TEST_F(ReplayCommand, LongPausesTakeNoTimeInTheSimulator) {
  const std::string row =
      R"({"session_id":"a","input_length":64,"output_length":3,"hash_ids":[1]})";
  const CommandResult outcome = run({"--trace", trace_of(row + "\n" + row + "\n" + row + "\n"),
                                     "--think-time", "1e8", "--policy", "static"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(results()["runs"][0]["turns"], 3);
}

// Less than a block, or than a page: the pool is rounded up, and no expert is given up for it.
TEST_F(ReplayCommand, ATinyPoolHasABlock) {
  const std::string trace =
      trace_of(R"({"session_id":"a","input_length":8,"output_length":3,"hash_ids":[1]})");
  for (const std::vector<std::string>& size :
       {std::vector<std::string>{"--kv-cache-tokens", "1"}, {"--kv-cache-memory-bytes", "1"}}) {
    const CommandResult outcome =
        run({"--trace", trace, size[0], size[1], "--policy", "static", "--sessions", "2147483647"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(results()["runs"][0]["failed_turns"], 0);
    EXPECT_EQ(results()["runs"][0]["groups_out"]["max"], 0);
  }
}

TEST_F(ReplayCommand, ARequestThatCanNeverFitIsCountedAndTheOthersGoOn) {
  const std::string small = R"("input_length":64,"output_length":3,"hash_ids":[1]})";
  const std::string large = R"("input_length":640000,"output_length":3,"hash_ids":[)" + [] {
    std::string ids = "1";
    for (int i = 2; i <= 10000; ++i) ids += fmt::format(",{}", i);
    return ids;
  }() + "]}";
  const std::string path = trace_of("{\"session_id\":\"a\"," + small + "\n{\"session_id\":\"b\"," +
                                    large + "\n{\"session_id\":\"c\"," + small + "\n");
  const CommandResult outcome =
      run({"--trace", path, "--kv-cache-memory-bytes", "1MiB", "--policy", "static"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(results()["runs"][0]["turns"], 3);
  EXPECT_EQ(results()["runs"][0]["failed_turns"], 1);
  ASSERT_EQ(run({"--trace", path, "--max-model-len", "1", "--policy", "static"}).code, 0);
  EXPECT_EQ(results()["runs"][0]["failed_turns"], 3);
}

}  // namespace
}  // namespace vamp
