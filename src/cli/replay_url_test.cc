// `vamp replay --url` from the command line to its files, against our own server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "cli/test_support.h"
#include "server/test_support.h"

namespace vamp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class ReplayUrl : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  CommandResult run(const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"replay", VAMP_SOURCE_DIR "/tests/golden/qwen3_moe",
                                     "--output", folder_};
    args.insert(args.end(), flags.begin(), flags.end());
    return run_command(args);
  }
  nlohmann::json results() const {
    return nlohmann::json::parse(std::ifstream(folder_ + "/results.json"));
  }

  const std::string folder_ =
      std::filesystem::temp_directory_path() / fmt::format("vamp_replay_url_{}", getpid());
  static std::string row(const char* session, int tokens, const std::vector<int>& blocks) {
    return nlohmann::json({{"session_id", session},
                           {"input_length", tokens},
                           {"output_length", 5},
                           {"hash_ids", blocks}})
               .dump() +
           "\n";
  }
  // Two sessions that say the same in three turns of blocks of 64 tokens.
  const std::string trace_ = [this] {
    std::filesystem::create_directories(folder_);
    std::ofstream file(folder_ + "/trace.jsonl");
    for (const char* session : {"a", "b"}) {
      for (int turn = 1; turn <= 3; ++turn) {
        std::vector<int> blocks(static_cast<size_t>(turn));
        std::iota(blocks.begin(), blocks.end(), 1);
        file << row(session, 64 * turn, blocks);
      }
    }
    return folder_ + "/trace.jsonl";
  }();
};

TEST_F(ReplayUrl, TheReportHasARunForEachServerAndNothingThatNobodyMeasured) {
  TestServer server;
  const std::string address = fmt::format("http://127.0.0.1:{}", server.port());
  const CommandResult outcome = run({"--trace", trace_, "--trace-block-size", "64", "--sessions",
                                     "1", "--url", "one=" + address + ",two=" + address + "/v1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json report = results();
  ASSERT_EQ(report["runs"].size(), 2u);
  for (const nlohmann::json& run : report["runs"]) {
    EXPECT_EQ(run["turns"], 6);
    EXPECT_EQ(run["failed_turns"], 0);
    EXPECT_GT(run["ttft_s"]["p50"], 0);
    EXPECT_GT(run["prefix_hit_rate_warm"], 0.5);
    EXPECT_EQ(run["settings"]["model"], "test-model");
    for (const char* figure : {"steps", "memory", "decisions", "groups_out", "host_hit_rate",
                               "preemptions_per_1000_turns", "staged_bytes"})
      EXPECT_TRUE(run[figure].is_null()) << figure;
    EXPECT_TRUE(run["queue_s"]["mean"].is_null());
  }
  EXPECT_EQ(report["runs"][1]["policy"], "two");
  EXPECT_EQ(report["answers"]["compared"], 6);
  EXPECT_EQ(report["answers"]["identical"], 6);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("TTFT p50"), testing::Not(HasSubstr("boundary"))));
}

TEST_F(ReplayUrl, ATurnThatTheServerRefusesIsCountedWithItsWords) {
  TestServer server;
  std::ofstream(trace_, std::ios::app) << row("c", 2000, std::vector<int>(32, 7));
  const CommandResult outcome = run({"--trace", trace_, "--trace-block-size", "64", "--url",
                                     fmt::format("http://localhost:{}", server.port())});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(results()["runs"][0]["turns"], 7);
  EXPECT_EQ(results()["runs"][0]["failed_turns"], 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("1 of 7 turns failed, the first in session 3, turn 1: "),
                                 HasSubstr("HTTP 400: "), HasSubstr("1024")));
}

TEST_F(ReplayUrl, FaultsOfTheUserAreOneLineAndCode2) {
  const std::string url = "http://127.0.0.1:9";
  const auto fails = [&](std::vector<std::string> flags, const std::string& why) {
    flags.insert(flags.end(), {"--trace", trace_, "--trace-block-size", "64"});
    const CommandResult outcome = run(flags);
    EXPECT_EQ(outcome.code, 2) << why;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("vamp: error: "), HasSubstr(why)));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/results.json"));
  };
  int port = 0;
  {
    TestServer gone;
    port = gone.port();
  }
  const std::string refused = fmt::format("http://127.0.0.1:{}", port);
  fails({"--url", refused},
        "--url " + refused + ": /v1/models: cannot connect: Connection refused");
  fails({"--url", "127.0.0.1:8000"}, "--url 127.0.0.1:8000: use [NAME=]http://");
  fails({"--url", "https://x"}, "https is not spoken");
  fails({"--url", url + "," + url}, "--url: 127.0.0.1:9 is named twice");
  for (const std::vector<std::string>& flag : {std::vector<std::string>{"--policy", "static"},
                                               {"--executor", "sim"},
                                               {"--gpu", "h200"},
                                               {"--device-memory", "1GiB"},
                                               {"--kv-cache-tokens", "64"},
                                               {"--kv-offloading-size", "1"},
                                               {"--max-offload-ratio", "5"},
                                               {"--max-num-seqs", "5"},
                                               {"--admission", "first-chunk"},
                                               {"--threads", "1"},
                                               {"--no-enable-prefix-caching"}}) {
    std::vector<std::string> flags = flag;
    flags.insert(flags.end(), {"--url", url});
    fails(flags, "says nothing with --url");
  }
  fails({"--served-model-name", "x"}, "--served-model-name says nothing without --url");
  fails({"--request-timeout", "5"}, "--request-timeout says nothing without --url");
  fails({"--url", url, "--request-timeout", "0"}, "--request-timeout");
}

}  // namespace
}  // namespace vamp
