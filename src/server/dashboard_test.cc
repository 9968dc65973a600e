// The dashboard: what it is told, and who sees what.
#include <gmock/gmock.h>

#include "server/activity.h"
#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

MemoryLayout tiny_layout() {
  MemoryLayoutOptions options;
  options.page_bytes = 4 * kKiB;
  options.device_bytes = 8 * kMiB;
  options.max_offload_percent = 50;
  return make_memory_layout(load_model_config(VAMP_SOURCE_DIR "/tests/golden/qwen3_moe"), options);
}

StepStats step_at(double second, const MemoryLayout& layout, int groups_out) {
  StepStats step;
  step.end = second * kSecond;
  step.decode_tokens = 2;
  step.bank_groups = layout.bank_groups(groups_out);
  step.scheduler.groups_out = groups_out;
  step.scheduler.running = 1;
  step.scheduler.total_blocks = layout.base_blocks();
  step.scheduler.referenced_blocks = 3;
  step.scheduler.free_blocks = layout.base_blocks() - 3;
  return step;
}

json column(const json& data, const std::string& name) {
  const json& columns = data["columns"];
  const auto at = std::find(columns.begin(), columns.end(), name) - columns.begin();
  json out = json::array();
  for (const json& row : data["seconds"]) out.push_back(row[static_cast<size_t>(at)]);
  return out;
}

TEST(ActivityTest, SecondsWithoutAStepAreAsTheOneBefore) {
  const MemoryLayout layout = tiny_layout();
  Activity activity;
  EXPECT_TRUE(activity.since({}, 5 * kSecond, true)["seconds"].empty());  // not started
  activity.start(layout, {}, 0);
  activity.on_step(step_at(1.2, layout, 0));
  activity.on_step(step_at(1.7, layout, 0));
  activity.on_step(step_at(4.5, layout, 4));
  const json data = activity.since({}, 6.5 * kSecond, true);
  EXPECT_EQ(column(data, "second"), json({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(column(data, "decode_tokens"), json({0, 4, 0, 0, 2, 0}));
  EXPECT_EQ(column(data, "running"), json({0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(column(data, "groups_out"), json({0, 0, 0, 0, 4, 4}));
  EXPECT_EQ(data["position"]["second"], 5);
  // Only what is new, and the running second is not over.
  Activity::Position seen;
  seen.second = 3;
  EXPECT_EQ(column(activity.since(seen, 5.9 * kSecond, true), "second"), json({4}));
  seen.second = 4;
  EXPECT_TRUE(activity.since(seen, 5.9 * kSecond, true)["seconds"].empty());
}

TEST(ActivityTest, KeepsABoundedPast) {
  const MemoryLayout layout = tiny_layout();
  Activity activity;
  activity.start(layout, {}, 0);
  DecisionRecord decision;
  decision.decision.costs = {{ActionKind::kDrop, 5.0}, {ActionKind::kWait, kInfeasible}};
  for (int i = 1; i <= 2000; ++i) {
    activity.on_step(step_at(i, layout, 0));
    decision.id = static_cast<uint64_t>(i);
    activity.on_decision(decision);
    activity.on_finished({}, {});
  }
  decision.reused_tokens = 48;
  activity.on_decision_result(decision);  // the same one again
  const json data = activity.since({}, 2001 * kSecond, true);
  EXPECT_EQ(data["seconds"].size(), Activity::kMaxSeconds);
  EXPECT_EQ(data["seconds"][0][0], 2001 - static_cast<int>(Activity::kMaxSeconds));
  EXPECT_EQ(data["requests"].size(), Activity::kMaxRequests);
  ASSERT_EQ(data["decisions"].size(), Activity::kMaxDecisions);
  EXPECT_EQ(data["decisions"].back()["asked_again"], 48);
  EXPECT_EQ(data["decisions"].back()["costs"][0]["price"], 5.0);
  EXPECT_EQ(data["decisions"].back()["costs"][1]["price"], nullptr);
  EXPECT_NE(data["decisions"][Activity::kMaxDecisions - 2]["id"], 2000);
}

TEST(Dashboard, ShowsWhatTheEngineDoes) {
  TestServer server("Hello there, world!");
  const HttpReply page = get(server.port(), "/dashboard");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.headers.at("content-security-policy"), HasSubstr("default-src 'none'"));
  EXPECT_THAT(page.body, HasSubstr("<title>VAMP</title>"));
  EXPECT_EQ(page.body.find("http://"), page.body.find("http://www.w3.org/2000/svg"));

  ASSERT_EQ(post(server.port(), "/v1/chat/completions", kChat).status, 200);
  json data = get(server.port(), "/dashboard/data").json();
  EXPECT_EQ(data["state"], "ready");
  EXPECT_EQ(data["policy"], "static");
  EXPECT_EQ(data["model"], "test-model");
  ASSERT_EQ(data["requests"].size(), 1u);
  const json& request = data["requests"][0];
  EXPECT_GT(request["prompt"], 0);
  EXPECT_GT(request["output"], 0);
  EXPECT_EQ(request["reason"], "stop");
  EXPECT_LE(request["arrival"], request["first_token"]);
  EXPECT_LE(request["first_token"], request["finished"]);
  const std::string query =
      fmt::format("?second={}&change={}", data["position"]["second"].get<int64_t>(),
                  data["position"]["change"].get<uint64_t>());
  EXPECT_TRUE(get(server.port(), "/dashboard/data" + query).json()["requests"].empty());
  // Whatever stands there, there is an answer.
  for (const char* odd : {"?second=", "?second=x&change=-4", "?&&=&change=99999999999999999999",
                          "?second=9223372036854775807", "?second=-9223372036854775808"})
    EXPECT_EQ(get(server.port(), std::string("/dashboard/data") + odd).status, 200) << odd;
}

TEST(Dashboard, OnlyTheFirstKeySeesSingleRequests) {
  ServerOptions options;
  options.api_keys = {"operator", "tenant"};
  TestServer server("Hello", options);
  EXPECT_EQ(get(server.port(), "/dashboard").status, 200);  // holds no data
  EXPECT_EQ(get(server.port(), "/dashboard/data").status, 401);
  ASSERT_EQ(post(server.port(), "/v1/chat/completions", kChat, "x-api-key: tenant\r\n").status,
            200);
  const json tenant = get(server.port(), "/dashboard/data", "x-api-key: tenant\r\n").json();
  EXPECT_FALSE(tenant["single"]);
  EXPECT_TRUE(tenant["requests"].empty());
  const json all = get(server.port(), "/dashboard/data", "x-api-key: operator\r\n").json();
  EXPECT_TRUE(all["single"]);
  EXPECT_EQ(all["requests"].size(), 1u);
}

}  // namespace
}  // namespace vamp
