// OpenAI's APIs over a real socket: chat, completions, models, errors.
#include <gmock/gmock.h>

#include <regex>

#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kAnswer = "Hello there, world!";

json chat_body() {
  return {{"model", "test-model"}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
}

std::string joined_content(const std::vector<json>& events) {
  std::string text;
  for (const json& event : events) {
    if (!event.is_object() || event["choices"].empty()) continue;
    text += event["choices"][0]["delta"].value("content", "");
  }
  return text;
}

class OpenAiApi : public testing::Test {
 protected:
  TestServer server_{kAnswer};
  const int port_ = server_.port();
};

TEST_F(OpenAiApi, ChatAnswersWhole) {
  const HttpReply reply = post(port_, "/v1/chat/completions", chat_body());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  const json body = reply.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], kAnswer);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const json& usage = body["usage"];
  EXPECT_GT(usage["prompt_tokens"], 5);
  EXPECT_GT(usage["completion_tokens"], 3);
  EXPECT_EQ(usage["total_tokens"],
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(OpenAiApi, ChatStreamsTheSameText) {
  json body = chat_body();
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpReply reply = post(port_, "/v1/chat/completions", body);
  ASSERT_EQ(reply.status, 200);
  EXPECT_THAT(reply.headers.at("content-type"), HasSubstr("text/event-stream"));
  const std::vector<json> events = events_of(reply.body);
  ASSERT_GT(events.size(), 5u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(joined_content(events), kAnswer);
  EXPECT_EQ(events.back(), "[DONE]");
  const json& usage = events[events.size() - 2];
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_GT(usage["usage"]["completion_tokens"], 3);
  const json& last = events[events.size() - 3];
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  for (const json& event : events) {
    if (event.is_object()) {
      EXPECT_EQ(event["id"], events[0]["id"]);
    }
  }
}

// To the byte, but for the time: what stands around a choice, whole and streamed.
TEST_F(OpenAiApi, AnswersAreWrittenAsTheyAlwaysWere) {
  const auto answer = [&](const std::string& path, json body, bool streamed) {
    body.update({{"max_tokens", 1}, {"return_token_ids", true}});
    if (streamed) {
      body["stream"] = true;
      body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
    }
    const std::string text = post(port_, path, body, "X-Request-Id: me\r\n").body;
    return std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":0");
  };
  const auto usage = [](int prompt) {
    return fmt::format(R"("usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":1,)"
                       R"("prompt_tokens_details":{{"cached_tokens":0}}}})",
                       prompt, prompt + 1);
  };
  const auto head = [](const char* id, const char* object) {
    return fmt::format(R"({{"id":"{}","object":"{}","created":0,"model":"test-model","choices":[)",
                       id, object);
  };
  EXPECT_EQ(
      answer("/v1/chat/completions", chat_body(), false),
      head("chatcmpl-me", "chat.completion") +
          R"({"index":0,"message":{"role":"assistant","content":"H","refusal":null},)"
          R"("logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[39]}],)" +
          usage(15) +
          R"(,"prompt_token_ids":[27,580,262,29,39,72,198,27,423,82,72,257,309,83,29]})");
  const std::string chunk = "data: " + head("chatcmpl-me", "chat.completion.chunk");
  EXPECT_EQ(answer("/v1/chat/completions", chat_body(), true),
            chunk + R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)" +
                R"("finish_reason":null}],)" + usage(15) + "}\n\n" + chunk +
                R"({"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":"length",)" +
                R"("stop_reason":null,"token_ids":[39]}],)" + usage(15) + "}\n\n" + chunk + "]," +
                usage(15) + "}\n\ndata: [DONE]\n\n");
  const std::string text = head("cmpl-me", "text_completion");
  const std::string choice =
      R"({"index":0,"text":"H","logprobs":null,"finish_reason":"length","stop_reason":null,)"
      R"("token_ids":[39])";
  EXPECT_EQ(answer("/v1/completions", {{"prompt", {7}}}, false),
            text + choice + R"(,"prompt_token_ids":[7]}],)" + usage(1) + "}");
  EXPECT_EQ(answer("/v1/completions", {{"prompt", {7}}}, true),
            "data: " + text + choice + "}]," + usage(1) + "}\n\ndata: " + text + "]," + usage(1) +
                "}\n\ndata: [DONE]\n\n");
}

TEST_F(OpenAiApi, CompletionsTakeEveryKindOfPrompt) {
  for (const json& prompt : std::vector<json>{"one", {"one"}, {1, 2, 3}, {{1, 2, 3}}}) {
    const HttpReply reply =
        post(port_, "/v1/completions", {{"prompt", prompt}, {"max_tokens", 50}});
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["text"], kAnswer);
  }
  const json two = post(port_, "/v1/completions",
                        {{"prompt", {"one", "two"}}, {"n", 2}, {"max_tokens", 50}, {"echo", true}})
                       .json();
  ASSERT_EQ(two["choices"].size(), 4u);
  EXPECT_EQ(two["choices"][1]["text"], "one" + kAnswer);
  EXPECT_EQ(two["choices"][2]["text"], "two" + kAnswer);
  EXPECT_EQ(two["choices"][3]["index"], 3);
}

TEST_F(OpenAiApi, StopStringsAndLengthsEndAnAnswer) {
  json body = chat_body();
  body["stop"] = "world";
  json choice = post(port_, "/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Hello there, ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "world");
  body = chat_body();
  body["max_tokens"] = 2;
  choice = post(port_, "/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  body["max_tokens"] = 100;
  body["ignore_eos"] = true;
  const json long_one = post(port_, "/v1/chat/completions", body).json();
  EXPECT_EQ(long_one["usage"]["completion_tokens"], 100);
}

TEST_F(OpenAiApi, LogprobsComeInBothShapes) {
  json body = chat_body();
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  const json chat = post(port_, "/v1/chat/completions", body).json();
  const json& content = chat["choices"][0]["logprobs"]["content"];
  ASSERT_GT(content.size(), 3u);
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_FALSE(content[0]["bytes"].empty());
  const json text =
      post(port_, "/v1/completions", {{"prompt", "x"}, {"max_tokens", 3}, {"logprobs", 1}}).json();
  const json& logprobs = text["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 3u);
  EXPECT_EQ(logprobs["token_logprobs"][0], -0.5);
  EXPECT_EQ(logprobs["text_offset"][0], 0);
}

TEST_F(OpenAiApi, PromptsAreScored) {
  json body = chat_body();
  body.update({{"prompt_logprobs", 1}, {"n", 2}, {"max_tokens", 3}, {"return_token_ids", true}});
  const json chat = post(port_, "/v1/chat/completions", body).json();
  const json& scores = chat["prompt_logprobs"];
  ASSERT_EQ(scores.size(), chat["prompt_token_ids"].size()) << chat;
  EXPECT_TRUE(scores[0].is_null());
  const std::string third = std::to_string(chat["prompt_token_ids"][2].get<int>());
  EXPECT_EQ(scores[2].size(), 2u);
  EXPECT_EQ(scores[2][third]["logprob"], -2);
  EXPECT_TRUE(scores[2][third]["rank"].is_null());
  EXPECT_EQ(scores[2]["1"]["rank"], 1);
  EXPECT_EQ(scores[2]["1"]["logprob"], -0.25);
  EXPECT_EQ(chat["usage"]["completion_tokens"], 6);

  body = {{"prompt", {{30, 31, 32}, {40, 41}}},
          {"n", 2},
          {"max_tokens", 2},
          {"prompt_logprobs", 0},
          {"logprobs", 1},
          {"echo", true}};
  const json text = post(port_, "/v1/completions", body).json();
  ASSERT_EQ(text["choices"].size(), 4u) << text;
  for (const size_t c : {1, 3}) {  // the second of each prompt has the first one's
    const json& choice = text["choices"][c];
    const json& lists = choice["logprobs"];
    const size_t prompt = c == 1 ? 3 : 2;
    EXPECT_EQ(choice["prompt_logprobs"].size(), prompt);
    ASSERT_EQ(lists["tokens"].size(), prompt + 2);
    EXPECT_TRUE(lists["token_logprobs"][0].is_null());
    EXPECT_TRUE(lists["top_logprobs"][0].is_null());
    EXPECT_EQ(lists["token_logprobs"][1], -1);
    EXPECT_EQ(lists["token_logprobs"][prompt], -0.5);
    std::string joined;
    for (size_t i = 0; i < lists["tokens"].size(); ++i) {
      EXPECT_EQ(lists["text_offset"][i], joined.size());
      joined += lists["tokens"][i].get<std::string>();
    }
    EXPECT_EQ(choice["text"], joined);
  }
  body["stream"] = true;
  EXPECT_THAT(post(port_, "/v1/completions", body).body,
              HasSubstr("prompt_logprobs: only without"));
  body.erase("prompt_logprobs");
  EXPECT_THAT(post(port_, "/v1/completions", body).body, HasSubstr("echoed prompt only without"));
}

TEST_F(OpenAiApi, FaultsNameTheField) {
  const auto with = [](json extra) {
    json body = chat_body();
    body.update(extra);
    return body;
  };
  struct Fault {
    json body;
    int status;
    std::string message, param;
  };
  const std::vector<Fault> faults = {
      {with({{"model", "other"}}), 404, "not served", "model"},
      {with({{"temperature", "hot"}}), 400, "temperature: expected a number", "temperature"},
      {with({{"temperature", -1}}), 400, "from 0 to 100", "temperature"},
      {with({{"max_tokens", 0}}), 400, "from 1", "max_tokens"},
      {with({{"max_tokens", 5000}}), 400, "maximum context length is 1024", "max_tokens"},
      {with({{"n", 1000}}), 400, "n: expected", "n"},
      {with({{"messages", json::array()}}), 400, "at least one", "messages"},
      {with({{"messages", {{{"content", "x"}}}}}), 400, "role", "messages[0].role"},
      {with({{"stop", 5}}), 400, "list of strings", "stop"},
      {with({{"stream", "yes"}}), 400, "true or false", "stream"},
      {with({{"top_logprobs", 3}}), 400, "logprobs: true", "top_logprobs"},
      {with({{"logit_bias", {{"99999", 1}}}}), 400, "not a token id", "logit_bias"},
      {with({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}}), 400,
       "--enable-auto-tool-choice", "tool_choice"},
      {with({{"seed", 1.5}}), 400, "whole number", "seed"},
  };
  for (const Fault& fault : faults) {
    const HttpReply reply = post(port_, "/v1/chat/completions", fault.body);
    EXPECT_EQ(reply.status, fault.status) << fault.body;
    const json error = reply.json()["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(fault.message));
    EXPECT_EQ(error["param"], fault.param);
    EXPECT_EQ(error["code"], fault.status);
  }
  EXPECT_EQ(post(port_, "/v1/chat/completions", with({{"unheard_of", 1}})).status, 200);
  const HttpReply long_prompt =
      post(port_, "/v1/completions", {{"prompt", std::string(9000, 'x')}});
  EXPECT_EQ(long_prompt.status, 400);
  EXPECT_THAT(long_prompt.body, HasSubstr("maximum context length"));
}

TEST_F(OpenAiApi, BodiesThatAreNoJson) {
  for (const std::string& body : std::vector<std::string>{
           "{", "[]", "null", "{\"model\": \"\xff\"}", std::string(100000, '[')}) {
    const HttpReply reply = call(port_, "POST", "/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 400) << body.substr(0, 20);
    EXPECT_EQ(reply.json()["error"]["type"], "BadRequestError");
  }
}

// By its bytes, without being tokenized; where it is only counted, it is.
TEST_F(OpenAiApi, APromptFarTooLongIsRefusedByItsLength) {
  const std::string text(1'000'000, 'x');
  const json chat = {{"messages", {{{"role", "user"}, {"content", text}}}}};
  for (const HttpReply& reply : {post(port_, "/v1/chat/completions", chat),
                                 post(port_, "/v1/completions", {{"prompt", text}})}) {
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json()["error"]["param"], "prompt");
    EXPECT_THAT(reply.body, HasSubstr("maximum context length is 1024 tokens"));
    EXPECT_THAT(reply.body, HasSubstr("bytes has far more"));
  }
  for (const json& body : {chat, json{{"prompt", text}}})
    EXPECT_GT(post(port_, "/tokenize", body).json()["count"], 1024);
  EXPECT_GT(post(port_, "/v1/messages/count_tokens", chat).json()["input_tokens"], 1024);
}

TEST_F(OpenAiApi, ModelsTokenizeAndTheRest) {
  const json models = get(port_, "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "test-model");
  EXPECT_EQ(models["data"][0]["max_model_len"], 1024);
  const json tokens =
      post(port_, "/tokenize", {{"prompt", "Hello there"}, {"add_special_tokens", false}}).json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  const json text = post(port_, "/detokenize", {{"tokens", tokens["tokens"]}}).json();
  EXPECT_EQ(text["prompt"], "Hello there");
  const json rendered = post(port_, "/v1/chat/completions/render", chat_body()).json();
  EXPECT_EQ(rendered["prompt"], "<user>Hi\n<assistant>");
  EXPECT_FALSE(rendered["token_ids"].empty());
  EXPECT_EQ(get(port_, "/health").status, 200);
  EXPECT_EQ(get(port_, "/ping").status, 200);
  EXPECT_EQ(get(port_, "/version").json()["version"], "0.1.0");
  EXPECT_EQ(get(port_, "/load").json()["server_load"], 0);
  EXPECT_EQ(post(port_, "/reset_prefix_cache", json::object()).status, 200);
  EXPECT_EQ(get(port_, "/nowhere").status, 404);
  EXPECT_EQ(get(port_, "/v1/chat/completions").status, 405);
}

TEST_F(OpenAiApi, RoutersFindWhatTheyLookFor) {
  const json info = get(port_, "/server_info?config_format=json").json();
  EXPECT_EQ(info["served_model_name"], "test-model");
  EXPECT_EQ(info["vllm_config"]["model_config"]["model"], "test-model");
  EXPECT_EQ(info["vllm_config"]["cache_config"]["block_size"], 16);
  const json rendered = post(port_, "/v1/completions/render", {{"prompt", {"Hi", "Ho"}}}).json();
  ASSERT_EQ(rendered.size(), 2u);
  EXPECT_FALSE(rendered[0]["token_ids"].empty());
  const json idle = get(port_, "/get_load").json();
  EXPECT_EQ(idle, json::parse(
                      R"([{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}])"));
  server_.controls().step_time = 20'000;
  RawClient client(port_);
  client.send(request_text("POST", "/v1/chat/completions", chat_body().dump()));
  json load;
  EXPECT_TRUE(eventually([&] {
    load = get(port_, "/get_load").json()[0];
    return load["num_reqs"] == 1 && load["num_waiting_reqs"] == 0 && load["num_tokens"] > 0;
  })) << load;
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(post(port_, "/flush_cache", json::object()).status, 200);
}

TEST_F(OpenAiApi, MetricsHaveVllmsNames) {
  post(port_, "/v1/chat/completions", chat_body());
  std::string text;
  ASSERT_TRUE(eventually([&] {
    text = get(port_, "/metrics").body;
    return text.find("finished_reason=\"stop\",model_name=\"test-model\"} 1") != std::string::npos;
  })) << text;
  for (const char* name :
       {"vllm:num_requests_running{engine=\"0\",model_name=\"test-model\"} 0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"test-model\"} 0",
        "vllm:kv_cache_usage_perc", "vllm:cache_config_info{", "vllm:prompt_tokens_total",
        "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"test-model\"} 1",
        "vllm:e2e_request_latency_seconds_bucket", "vamp:memory_bytes{"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
}

}  // namespace
}  // namespace vamp
