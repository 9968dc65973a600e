// What agents use: tools and reasoning in OpenAI's chat, Anthropic's messages, OpenAI's responses.
#include <gmock/gmock.h>

#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kAgentAnswer =
    "<think>Let me see.</think>On it.<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n"
    "</tool_call>";

ServerOptions agent_options() {
  ServerOptions options;
  options.enable_auto_tool_choice = true;
  options.tool_call_parser = "hermes";
  options.reasoning_parser = "qwen3";
  return options;
}

const json kFunction = {{"name", "add"},
                        {"parameters", {{"type", "object"}, {"properties", json::object()}}}};

class AgentApi : public testing::Test {
 protected:
  TestServer server_{kAgentAnswer, agent_options()};
  const int port_ = server_.port();

  // What the engine was last asked to run, as text.
  std::string last_prompt() {
    const std::lock_guard lock(server_.controls().mutex);
    const auto& tokens = server_.controls().last_start.tokens;
    return server_.server().service().text().tokenizer().decode(tokens, false);
  }
};

std::vector<std::string> types_of(const std::vector<json>& events) {
  std::vector<std::string> types;
  for (const json& event : events) {
    const std::string type = event["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  return types;
}

TEST_F(AgentApi, ChatTakesReasoningAndToolCallsApart) {
  json body = {{"messages", {{{"role", "user"}, {"content", "1 and 2?"}}}},
               {"tools", {{{"type", "function"}, {"function", kFunction}}}}};
  const json whole = post(port_, "/v1/chat/completions", body).json();
  const json& message = whole["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "Let me see.");
  EXPECT_EQ(message["content"], "On it.");
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(json::parse(message["tool_calls"][0]["function"]["arguments"].get<std::string>()),
            json({{"a", 1}}));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_THAT(last_prompt(), HasSubstr("tools:1"));

  body["stream"] = true;
  std::string arguments, name, content, reasoning, finish;
  for (const json& event : events_of(post(port_, "/v1/chat/completions", body).body)) {
    if (!event.is_object()) continue;
    const json& choice = event["choices"][0];
    const json& delta = choice["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning", "");
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    for (const json& call : delta.value("tool_calls", json::array())) {
      EXPECT_EQ(call["index"], 0);
      name += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(content, "On it.");
  EXPECT_EQ(reasoning, "Let me see.");
  EXPECT_EQ(name, "add");
  EXPECT_EQ(json::parse(arguments), json({{"a", 1}}));
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(AgentApi, WithoutToolsACallIsText) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "1 and 2?"}}}}};
  const json message = post(port_, "/v1/chat/completions", body).json()["choices"][0]["message"];
  EXPECT_THAT(message["content"].get<std::string>(), HasSubstr("<tool_call>"));
  EXPECT_FALSE(message.contains("tool_calls"));
}

json messages_body() {
  return {{"model", "test-model"},
          {"max_tokens", 200},
          {"system",
           {{{"type", "text"},
             {"text", "Be brief."},
             {"cache_control", {{"type", "ephemeral"}, {"ttl", "1h"}}}}}},
          {"tools", {{{"name", "add"}, {"input_schema", {{"type", "object"}}}}}},
          {"messages",
           {{{"role", "user"}, {"content", "1 and 2?"}},
            {{"role", "assistant"},
             {"content",
              {{{"type", "thinking"}, {"thinking", "hm"}},
               {{"type", "tool_use"}, {"id", "t1"}, {"name", "add"}, {"input", {{"a", 1}}}}}}},
            {{"role", "user"},
             {"content",
              {{{"type", "tool_result"}, {"tool_use_id", "t1"}, {"content", "3"}},
               {{"type", "text"}, {"text", "go on"}}}}}}}};
}

TEST_F(AgentApi, MessagesAnswerInAnthropicsForm) {
  const HttpReply reply = post(port_, "/v1/messages", messages_body());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json message = reply.json();
  EXPECT_EQ(last_prompt(),
            "<system>Be brief.\n<user>1 and 2?\n<assistant>\n<tool>3\n<user>go on\ntools:1\n"
            "<assistant>");
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  ASSERT_EQ(message["content"].size(), 3u);
  EXPECT_EQ(message["content"][0]["thinking"], "Let me see.");
  EXPECT_EQ(message["content"][1]["text"], "On it.");
  EXPECT_EQ(message["content"][2]["input"], json({{"a", 1}}));
  const json count = post(port_, "/v1/messages/count_tokens", messages_body()).json();
  EXPECT_EQ(count["input_tokens"], message["usage"]["input_tokens"]);
}

TEST_F(AgentApi, MessagesStreamBlockByBlock) {
  json body = messages_body();
  body["stream"] = true;
  const std::vector<json> events = events_of(post(port_, "/v1/messages", body).body);
  EXPECT_THAT(
      types_of(events),
      testing::ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                           "content_block_stop", "content_block_start", "content_block_delta",
                           "content_block_stop", "content_block_start", "content_block_delta",
                           "content_block_stop", "message_delta", "message_stop"));
  std::string input;
  for (const json& event : events) {
    if (event["type"] == "content_block_delta" && event["index"] == 2)
      input += event["delta"]["partial_json"];
  }
  EXPECT_EQ(json::parse(input), json({{"a", 1}}));
}

TEST_F(AgentApi, MessagesFaultsHaveAnthropicsShape) {
  json body = messages_body();
  body.erase("max_tokens");
  const HttpReply reply = post(port_, "/v1/messages", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["type"], "error");
  EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  EXPECT_THAT(reply.body, HasSubstr("max_tokens"));
  body = messages_body();
  body["messages"][0]["content"] = {{{"type", "image"}, {"source", json::object()}}};
  EXPECT_THAT(post(port_, "/v1/messages", body).body, HasSubstr("messages[0].content[0].type"));
}

TEST_F(AgentApi, ResponsesAnswerAndStream) {
  json body = {
      {"instructions", "Be brief."},
      {"input",
       {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "1 and 2?"}}}}},
        {{"type", "function_call"}, {"call_id", "c1"}, {"name", "add"}, {"arguments", "{}"}},
        {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "3"}}}},
      {"tools", {{{"type", "function"}, {"name", "add"}}}}};
  const HttpReply reply = post(port_, "/v1/responses", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json response = reply.json();
  EXPECT_EQ(last_prompt(),
            "<system>Be brief.\n<user>1 and 2?\n<assistant>\n<tool>3\ntools:1\n<assistant>");
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "On it.");
  EXPECT_EQ(response["output"][2]["name"], "add");
  body["stream"] = true;
  const std::vector<json> events = events_of(post(port_, "/v1/responses", body).body);
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  const json& output = events.back()["response"]["output"];
  EXPECT_EQ(output[2]["arguments"], response["output"][2]["arguments"]);
  body["previous_response_id"] = "resp_1";
  EXPECT_EQ(post(port_, "/v1/responses", body).status, 400);
}

TEST(ChatTemplates, WhatTheyRaiseIsTheRequestsFault) {
  ServerOptions options;
  options.chat_template = "{{ raise_exception('roles must alternate') }}";
  TestServer server("x", options);
  const HttpReply reply = post(server.port(), "/v1/chat/completions",
                               {{"messages", {{{"role", "user"}, {"content", "x"}}}}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("roles must alternate"));
}

}  // namespace
}  // namespace vamp
