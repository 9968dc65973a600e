#include "replay/completion_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "replay/server_url.h"

namespace vamp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string fault_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no fault";
}
std::string stream_fault(const std::string& bytes) {
  return fault_of([&bytes] { CompletionStream().feed(bytes); });
}

// As vLLM writes it, with CR and a comment between.
constexpr std::string_view kStream =
    ": ping\r\n\r\n"
    R"(data: {"choices":[{"index":0,"text":"","finish_reason":null}],"usage":null})"
    "\r\n\r\n"
    R"(data: {"choices":[{"index":0,"text":"He","token_ids":[7,8],"finish_reason":null}]})"
    "\n\n"
    R"(data:{"choices":[{"index":0,"text":"y ü","token_ids":[9],"finish_reason":"length"}]})"
    "\n\n"
    R"(data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":16}}})"
    "\n\ndata: [DONE]\n\n";

TEST(CompletionStream, IsTheSameHoweverItIsCut) {
  for (size_t step = 1; step <= kStream.size(); ++step) {
    CompletionStream stream;
    for (size_t at = 0; at < kStream.size(); at += step) stream.feed(kStream.substr(at, step));
    EXPECT_THAT(stream.tokens, ElementsAre(7, 8, 9));
    EXPECT_EQ(stream.text, "Hey ü");
    EXPECT_TRUE(stream.started && stream.finished);
    EXPECT_EQ(stream.reason, FinishReason::kLength);
    EXPECT_EQ(stream.pieces, 2);
    EXPECT_EQ(stream.prompt_tokens, 20);
    EXPECT_EQ(stream.output_tokens, 3);
    EXPECT_EQ(stream.cached_tokens, 16);
  }
}

TEST(CompletionStream, StartsWithTheFirstTokenNotWithTheFirstEvent) {
  CompletionStream stream;
  const size_t first = kStream.find("data: {\"choices\":[{\"index\":0,\"text\":\"He\"");
  stream.feed(kStream.substr(0, first));
  EXPECT_FALSE(stream.started);
  stream.feed(kStream.substr(first, 120));
  EXPECT_TRUE(stream.started);
  EXPECT_FALSE(stream.finished);
}

TEST(CompletionStream, WhatTheServerDoesNotTellStaysUnknown) {
  CompletionStream stream;
  stream.feed(
      "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}],"
      "\"usage\":{\"prompt_tokens\":3,\"prompt_tokens_details\":null}}\n\n");
  EXPECT_TRUE(stream.started && stream.finished);
  EXPECT_EQ(stream.prompt_tokens, 3);
  EXPECT_EQ(stream.output_tokens, -1);
  EXPECT_EQ(stream.cached_tokens, -1);
}

TEST(CompletionStream, FaultsAreToldInTheServersWords) {
  EXPECT_EQ(stream_fault("data: {\"error\":{\"message\":\"out of\\nblocks\",\"code\":500}}\n"),
            "out of blocks");
  EXPECT_THAT(stream_fault("data: {\"choices\n"), HasSubstr("no JSON object: {\"choices"));
  EXPECT_THAT(stream_fault("data: 7\n"), HasSubstr("no JSON object: 7"));
  EXPECT_THAT(stream_fault("data: {\"choices\":[{\"finish_reason\":\"abort\"}]}\n"),
              HasSubstr("ended with \"abort\""));
  EXPECT_THAT(stream_fault("data: {\"choices\":[{\"token_ids\":[\"x\"]}]}\n"),
              HasSubstr("token_ids"));
  EXPECT_EQ(stream_fault("data: {\"choices\":{},\"usage\":[]}\n"), "no fault");
  EXPECT_EQ(server_fault(R"({"detail":"Not Found"})"), "Not Found");
  EXPECT_EQ(server_fault(R"({"object":"error","message":"too long"})"), "too long");
  EXPECT_EQ(server_fault("<html>\r\n\xff"), "<html>  ?");
  const std::string cut = server_fault("\"" + std::string(299, 'a') + "üüü\"");
  EXPECT_EQ(cut, std::string(299, 'a') + "...");
}

TEST(ServerUrl, IsReadInParts) {
  const ServerUrl plain = parse_server_url("http://gpu-7:8000/v1/");
  EXPECT_EQ(plain.name, "gpu-7:8000");
  EXPECT_EQ(plain.host, "gpu-7");
  EXPECT_EQ(plain.port, "8000");
  EXPECT_EQ(plain.prefix, "");
  const ServerUrl named = parse_server_url("vllm=http://[::1]/a/b=c/");
  EXPECT_EQ(named.name, "vllm");
  EXPECT_EQ(named.text, "http://[::1]/a/b=c/");
  EXPECT_EQ(named.host, "::1");
  EXPECT_EQ(named.port, "80");
  EXPECT_EQ(named.prefix, "/a/b=c");
  EXPECT_THAT(fault_of([] { parse_server_url("https://a"); }), HasSubstr("https is not spoken"));
  for (const char* bad :
       {"", "x", "a=", "http://", "http://:80", "http://a:", "http://a:x", "http://a:65536",
        "http://[::1", "http://[", "http://[]", "http://[::1]80", "http://a b", "http://a/?q",
        "http://me@a", "ftp://a", "http://a:99999999999"}) {
    EXPECT_THAT(fault_of([bad] { parse_server_url(bad); }), HasSubstr("use [NAME=]http://")) << bad;
  }
}

}  // namespace
}  // namespace vamp
