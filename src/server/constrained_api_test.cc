// Constrained output over a real socket, by every API and field that can ask for it. What the
// constraint leaves open is random.
#include <gmock/gmock.h>

#include <set>

#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

const json kSchema = {
    {"type", "object"},
    {"properties",
     {{"color", {{"enum", {"red", "green"}}}},
      {"sizes",
       {{"type", "array"}, {"items", {{"type", "boolean"}}}, {"minItems", 1}, {"maxItems", 2}}}}},
    {"required", {"color", "sizes"}},
    {"additionalProperties", false}};

// With definitions, to be found again wherever the schema is put.
const json kPick = {{"name", "pick"},
                    {"parameters",
                     {{"type", "object"},
                      {"properties", {{"which", {{"$ref", "#/$defs/side"}}}}},
                      {"required", {"which"}},
                      {"$defs", {{"side", {{"enum", {"left", "right"}}}}}}}}};
const json kStop = {{"name", "stop"}};

void expect_schema(const std::string& text) {
  const json value = json::parse(text, nullptr, false);
  ASSERT_TRUE(value.is_object()) << text;
  EXPECT_EQ(value.size(), 2u) << text;
  EXPECT_TRUE(value["color"] == "red" || value["color"] == "green") << text;
  ASSERT_TRUE(value["sizes"].is_array()) << text;
  EXPECT_TRUE(value["sizes"].size() == 1 || value["sizes"].size() == 2) << text;
  for (const json& size : value["sizes"]) EXPECT_TRUE(size.is_boolean()) << text;
}

void expect_call(const std::string& name, const std::string& arguments) {
  const json value = json::parse(arguments, nullptr, false);
  if (name == "pick") {
    EXPECT_TRUE(value == json({{"which", "left"}}) || value == json({{"which", "right"}}))
        << arguments;
  } else {
    EXPECT_EQ(name, "stop");
    EXPECT_EQ(value, json::object());
  }
}

json chat_with(const json& extra) {
  json body = kChat;
  body.update(extra);
  return body;
}

json tools() {
  return {{{"type", "function"}, {"function", kPick}}, {{"type", "function"}, {"function", kStop}}};
}

class ConstrainedApi : public testing::Test {
 protected:
  json ask(const std::string& path, const json& body) {
    const HttpReply reply = post(port_, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  }
  std::string chat_content(const json& extra) {
    const json choice = ask("/v1/chat/completions", chat_with(extra))["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    return choice["message"]["content"];
  }
  std::string completion(const json& extra) {
    json body = {{"prompt", "x"}, {"max_tokens", 900}};
    body.update(extra);
    return ask("/v1/completions", body)["choices"][0]["text"];
  }

  TestServer server_;
  const int port_ = server_.port();
};

TEST_F(ConstrainedApi, ChatAnswersByTheSchema) {
  const json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "s"}, {"strict", true}, {"schema", kSchema}}}};
  expect_schema(chat_content({{"response_format", format}}));
  std::string streamed;
  const json body = chat_with({{"response_format", format}, {"stream", true}});
  for (const json& event : events_of(post(port_, "/v1/chat/completions", body).body)) {
    if (event.is_object()) streamed += event["choices"][0]["delta"].value("content", "");
  }
  expect_schema(streamed);
  EXPECT_EQ(chat_content({{"response_format", {{"type", "text"}}}}), "Hello there, world!");
}

TEST_F(ConstrainedApi, EveryFieldOfVllmsConstrains) {
  for (const json& fields : std::vector<json>{{{"structured_outputs", {{"json", kSchema}}}},
                                              {{"structured_outputs", {{"json", kSchema.dump()}}}},
                                              {{"guided_json", kSchema}}}) {
    expect_schema(completion(fields));
    expect_schema(chat_content(fields));
  }
  for (const json& fields :
       std::vector<json>{{{"structured_outputs", {{"regex", "[ab]{3}-[0-9]"}}}},
                         {{"guided_regex", "[ab]{3}-[0-9]"}}})
    EXPECT_THAT(completion(fields), MatchesRegex("[ab][ab][ab]-[0-9]"));
  for (const json& fields : std::vector<json>{{{"structured_outputs", {{"choice", {"yes", "no"}}}}},
                                              {{"guided_choice", {"yes", "no"}}}})
    EXPECT_THAT(completion(fields), testing::AnyOf("yes", "no"));
  const std::string grammar = "root ::= \"<\" side \">\"\nside ::= \"l\" | \"r\"";
  for (const json& fields : std::vector<json>{{{"structured_outputs", {{"grammar", grammar}}}},
                                              {{"guided_grammar", grammar}}})
    EXPECT_THAT(completion(fields), testing::AnyOf("<l>", "<r>"));
}

// What goes on for as long as the model likes: that it begins as it must is all there is to see.
TEST_F(ConstrainedApi, AnyObjectIsAnObject) {
  for (const json& fields : std::vector<json>{{{"structured_outputs", {{"json_object", true}}}},
                                              {{"response_format", {{"type", "json_object"}}}}}) {
    EXPECT_THAT(completion(fields), StartsWith("{"));
  }
}

TEST_F(ConstrainedApi, ANamedToolIsCalled) {
  json body = chat_with({{"tools", tools()},
                         {"tool_choice", {{"type", "function"}, {"function", {{"name", "pick"}}}}},
                         // says how an answer looks, of which there is none
                         {"response_format", {{"type", "json_object"}}}});
  const json choice = ask("/v1/chat/completions", body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const json& call = choice["message"]["tool_calls"][0];
  EXPECT_THAT(call["id"].get<std::string>(), StartsWith("call_"));
  EXPECT_EQ(call["function"]["name"], "pick");
  expect_call("pick", call["function"]["arguments"]);
  body["tool_choice"]["function"]["name"] = "stop";
  const json other = ask("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"][0];
  expect_call("stop", other["function"]["arguments"]);
}

TEST_F(ConstrainedApi, SomeToolIsCalled) {
  std::set<std::string> called;
  for (int round = 0; round < 8; ++round) {
    const json body = chat_with(
        {{"tools", tools()}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
    const json choice = ask("/v1/chat/completions", body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    const json& function = choice["message"]["tool_calls"][0]["function"];
    expect_call(function["name"], function["arguments"]);
    called.insert(function["name"]);
  }
  EXPECT_EQ(called.size(), 2u);
}

TEST_F(ConstrainedApi, SeveralCallsStream) {
  size_t most = 0;
  for (int round = 0; round < 8; ++round) {
    const json body =
        chat_with({{"tools", tools()}, {"tool_choice", "required"}, {"stream", true}});
    std::vector<std::pair<std::string, std::string>> calls;
    std::string finish;
    for (const json& event : events_of(post(port_, "/v1/chat/completions", body).body)) {
      if (!event.is_object()) continue;
      const json& choice = event["choices"][0];
      EXPECT_EQ(choice["delta"].value("content", ""), "");
      if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
      for (const json& call : choice["delta"].value("tool_calls", json::array())) {
        const size_t index = call["index"];
        if (index == calls.size()) calls.emplace_back(call["function"]["name"], "");
        ASSERT_LT(index, calls.size());
        calls[index].second += call["function"]["arguments"].get<std::string>();
      }
    }
    ASSERT_FALSE(calls.empty());
    most = std::max(most, calls.size());
    if (finish == "length") calls.pop_back();  // cut in the midst of it
    for (const auto& [name, arguments] : calls) expect_call(name, arguments);
  }
  EXPECT_GT(most, 1u);
}

TEST_F(ConstrainedApi, ResponsesTakeFormatsAndToolChoices) {
  json body = {
      {"input", "Hi"},
      {"text", {{"format", {{"type", "json_schema"}, {"name", "s"}, {"schema", kSchema}}}}}};
  expect_schema(ask("/v1/responses", body)["output"][0]["content"][0]["text"]);
  json tool = kPick;
  tool["type"] = "function";
  for (const json& choice : {json("required"), json({{"type", "function"}, {"name", "pick"}})}) {
    body["tools"] = json::array({tool});
    body["tool_choice"] = choice;
    body["parallel_tool_calls"] = false;
    const json item = ask("/v1/responses", body)["output"][0];
    EXPECT_EQ(item["type"], "function_call");
    EXPECT_EQ(item["name"], "pick");
    expect_call("pick", item["arguments"]);
  }
}

TEST_F(ConstrainedApi, MessagesTakeToolChoicesAndFormats) {
  json body = kChat;
  body["max_tokens"] = 900;
  body["output_config"] = {{"format", {{"type", "json_schema"}, {"schema", kSchema}}}};
  expect_schema(ask("/v1/messages", body)["content"][0]["text"]);
  body["tools"] = {{{"name", "pick"}, {"input_schema", kPick["parameters"]}}};
  for (const json& choice : {json({{"type", "any"}, {"disable_parallel_tool_use", true}}),
                             json({{"type", "tool"}, {"name", "pick"}})}) {
    body["tool_choice"] = choice;
    const json message = ask("/v1/messages", body);
    EXPECT_EQ(message["stop_reason"], "tool_use");
    ASSERT_EQ(message["content"].size(), 1u) << message;
    EXPECT_EQ(message["content"][0]["type"], "tool_use");
    expect_call(message["content"][0]["name"], message["content"][0]["input"].dump());
  }
}

TEST_F(ConstrainedApi, FaultsNameTheField) {
  const auto required = [](json function) {
    return json{{"tools", {{{"type", "function"}, {"function", std::move(function)}}}},
                {"tool_choice", "required"}};
  };
  const auto format = [](json schema) {
    return json{{"response_format",
                 {{"type", "json_schema"}, {"json_schema", {{"schema", std::move(schema)}}}}}};
  };
  struct Fault {
    json extra;
    std::string message, param;
  };
  const std::string schema = "response_format.json_schema.schema";
  const std::vector<Fault> faults = {
      {{{"response_format", {{"type", "xml"}}}}, "not supported", "response_format.type"},
      {{{"response_format", "json_object"}}, "expected an object", "response_format"},
      {{{"response_format", {{"type", "json_schema"}}}}, "missing", "response_format.json_schema"},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}}}}}},
       "missing",
       schema},
      {format(5), "expected a JSON schema", schema},
      {format({{"type", "array"}, {"uniqueItems", true}}), "uniqueItems is not supported", schema},
      {format({{"type", "string"}, {"maxLength", 1000000}}), "above the 10000", schema},
      {{{"guided_json", "{"}}, "not JSON", "guided_json"},
      {{{"guided_regex", "("}}, "", "guided_regex"},
      {{{"guided_regex", 1}}, "expected a string", "guided_regex"},
      {{{"guided_choice", "yes"}}, "list of strings", "guided_choice"},
      {{{"guided_choice", json::array()}}, "empty", "guided_choice"},
      {{{"guided_grammar", "nonsense"}}, "", "guided_grammar"},
      {{{"structured_outputs", json::object()}}, "expected json, regex", "structured_outputs"},
      {{{"structured_outputs", {{"regex", "a"}, {"choice", {"b"}}}}},
       "structured_outputs.regex constrains",
       "structured_outputs.choice"},
      {{{"structured_outputs", {{"regex", "a"}}}, {"guided_regex", "a"}},
       "use one of them",
       "guided_regex"},
      {{{"structured_outputs", {{"structural_tag", "x"}}}},
       "not supported",
       "structured_outputs.structural_tag"},
      {{{"guided_regex", "a"}, {"min_tokens", 3}}, "guided_regex", "min_tokens"},
      {{{"guided_regex", "a"}, {"ignore_eos", true}}, "guided_regex", "ignore_eos"},
      {{{"tool_choice", "required"}}, "needs tools", "tool_choice"},
      {{{"tools", tools()}, {"tool_choice", "some"}}, "is not known", "tool_choice"},
      {{{"tools", tools()},
        {"tool_choice", {{"type", "function"}, {"function", {{"name", "other"}}}}}},
       "no tool is called \"other\"",
       "tool_choice"},
      {{{"tools", tools()}, {"tool_choice", {{"type", "function"}}}},
       "missing",
       "tool_choice.function.name"},
      {{{"tools", tools()}, {"tool_choice", "required"}, {"guided_regex", "a"}},
       "forces a call",
       "guided_regex"},
      {required({{"name", "f"}, {"parameters", {{"not", json::object()}}}}), "not is not supported",
       "tools[0].function.parameters"},
      {required({{"name", "f"}, {"parameters", 1}}), "expected a JSON schema",
       "tools[0].function.parameters"},
  };
  for (const Fault& fault : faults) {
    const HttpReply reply = post(port_, "/v1/chat/completions", chat_with(fault.extra));
    EXPECT_EQ(reply.status, 400) << fault.extra << reply.body;
    const json error = reply.json()["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(fault.message)) << fault.extra;
    EXPECT_EQ(error["param"], fault.param) << error;
  }
  EXPECT_EQ(post(port_, "/v1/chat/completions", kChat).status, 200);
}

TEST(ConstrainedLimits, AreTheServersOptions) {
  ServerOptions options;
  options.grammar.source_bytes = 40;
  options.grammar.max_repetition = 5;
  options.grammar.schema_depth = 3;
  options.grammar.schema_nodes = 4;
  TestServer server("Hi", options);
  const auto error = [&](const json& extra) {
    return post(server.port(), "/v1/chat/completions", chat_with(extra))
        .json()["error"]["message"]
        .get<std::string>();
  };
  EXPECT_THAT(error({{"guided_regex", std::string(41, 'a')}}), HasSubstr("more than the 40"));
  EXPECT_THAT(error({{"guided_regex", "a{6}"}}), HasSubstr("more than 5"));
  EXPECT_THAT(error({{"guided_json", {{"anyOf", {{{"anyOf", {true}}}}}}}}), HasSubstr("3 deep"));
  EXPECT_THAT(error({{"guided_json", {{"anyOf", {true, true, true}}}}}), HasSubstr("4 values"));
}

TEST(ConstrainedLimits, SomethingMustEndTheOutput) {
  TestServer server("Hi", {}, 64, /*names_end_token=*/false);
  json body = chat_with({{"guided_choice", {"yes", "no"}}});
  const HttpReply refused = post(server.port(), "/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("set stop_token_ids"));
  body["stop_token_ids"] = {706};  // </s>
  const json choice = post(server.port(), "/v1/chat/completions", body).json()["choices"][0];
  EXPECT_THAT(choice["message"]["content"].get<std::string>(), testing::AnyOf("yes", "no"));
}

// The model thinks as it likes; the constraint holds for what it says then.
TEST(ConstrainedReasoning, ComesBeforeTheAnswer) {
  ServerOptions options;
  options.reasoning_parser = "qwen3";
  TestServer thinking("<think>Hm, so.</think>x", options);
  const json fields = {{"guided_choice", {"yes", "no"}}};
  const auto answer = [&](TestServer& server, const json& extra) {
    const HttpReply reply = post(server.port(), "/v1/chat/completions", chat_with(extra));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["choices"][0]["message"];
  };
  const json message = answer(thinking, fields);
  EXPECT_EQ(message["reasoning"], "Hm, so.");
  EXPECT_THAT(message["content"].get<std::string>(), testing::AnyOf("yes", "no"));
  const json called = answer(
      thinking, {{"tools", tools()}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
  EXPECT_EQ(called["reasoning"], "Hm, so.");
  expect_call(called["tool_calls"][0]["function"]["name"],
              called["tool_calls"][0]["function"]["arguments"]);

  TestServer plain("Hello", options);  // does not think
  const json direct = answer(plain, fields);
  EXPECT_FALSE(direct.contains("reasoning"));
  EXPECT_THAT(direct["content"].get<std::string>(), testing::AnyOf("yes", "no"));

  options.chat_template = "{{ messages[0].content }}<think>\n";
  TestServer opened("Let me see.</think>x", options);
  const json rest = answer(opened, fields);
  EXPECT_EQ(rest["reasoning"], "Let me see.");
  EXPECT_THAT(rest["content"].get<std::string>(), testing::AnyOf("yes", "no"));
}

TEST(ConstrainedReasoning, ItsEndMustBeSeen) {
  for (const auto& [parser, message] : std::vector<std::pair<std::string, std::string>>{
           {"seed_oss", "</seed:think>"}, {"openai_gptoss", "gpt-oss"}}) {
    ServerOptions options;
    options.reasoning_parser = parser;
    TestServer server("Hi", options);
    const HttpReply reply =
        post(server.port(), "/v1/chat/completions", chat_with({{"guided_regex", "a"}}));
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr(message));
  }
}

}  // namespace
}  // namespace vamp
