#include "text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "text/output_parser_test_support.h"

namespace vamp {
namespace {

using nlohmann::ordered_json;
using test::Call;
using test::Message;
using test::parse_all_ways;
using test::reasoning;
using test::tools;
using testing::HasSubstr;

TEST(OutputParser, PlainTextIsContent) {
  EXPECT_EQ(parse_all_ways({}, "a <think> <tool_call>{} {\"name\""),
            (Message{"", "a <think> <tool_call>{} {\"name\"", {}}));
}

TEST(OutputParser, UnknownNamesAreRefused) {
  try {
    make_output_parser(tools("pythonic"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"pythonic\" is not known; known: "));
    EXPECT_THAT(error.what(), HasSubstr("hermes"));
  }
  EXPECT_THROW(make_output_parser(reasoning("granite")), Error);
  for (const std::string& name : tool_call_parser_names())
    EXPECT_TRUE(make_output_parser(tools(name)));
  for (const std::string& name : reasoning_parser_names()) {
    EXPECT_TRUE(make_output_parser(reasoning(name)));
  }
}

TEST(OutputParser, ThinkMarkersDivideReasoningFromContent) {
  const Message expected{"\nLet me see.\n", "\n\nIt is 4 < 5.", {}};
  EXPECT_EQ(parse_all_ways(reasoning("qwen3"), "<think>\nLet me see.\n</think>\n\nIt is 4 < 5."),
            expected);
  EXPECT_EQ(parse_all_ways(reasoning("qwen3", true), "\nLet me see.\n</think>\n\nIt is 4 < 5."),
            expected);
  EXPECT_EQ(parse_all_ways(reasoning("deepseek_r1"), "\nLet me see.\n</think>\n\nIt is 4 < 5."),
            expected);
  EXPECT_EQ(
      parse_all_ways(reasoning("deepseek_r1"), "<think>\nLet me see.\n</think>\n\nIt is 4 < 5."),
      expected);
  EXPECT_EQ(parse_all_ways(reasoning("qwen3"), "No thoughts </think> at all"),
            (Message{"", "No thoughts </think> at all", {}}));
  EXPECT_EQ(parse_all_ways(reasoning("qwen3"), "<think>cut </thin"),
            (Message{"cut </thin", "", {}}));
  EXPECT_EQ(parse_all_ways(reasoning("qwen3"), "<thi"), (Message{"", "<thi", {}}));
  EXPECT_EQ(parse_all_ways(reasoning("deepseek_r1"), "<thi"), (Message{"<thi", "", {}}));
}

TEST(OutputParser, ThePromptTellsWhetherReasoningIsOpen) {
  EXPECT_TRUE(prompt_opens_reasoning("<|im_start|>assistant\n<think>\n", "qwen3"));
  EXPECT_FALSE(prompt_opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n", "qwen3"));
  EXPECT_FALSE(
      prompt_opens_reasoning("what is <think>?<|im_end|>\n<|im_start|>assistant\n", "qwen3"));
  EXPECT_FALSE(prompt_opens_reasoning("<think>", ""));
}

TEST(OutputParser, HermesCalls) {
  const std::string two =
      "Let me look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln "
      "}\", "
      "\"days\": [1, {\"x\": \"a\\\"\"}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", "
      "\"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(parse_all_ways(tools("hermes"), two),
            (Message{"",
                     "Let me look.",
                     {{"get_weather", R"({"city": "Köln }", "days": [1, {"x": "a\""}]})"},
                      {"now", "{}"}}}));
  // Arguments first, as text, and not at all.
  EXPECT_EQ(parse_all_ways(tools("hermes"),
                           R"(<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>)"),
            (Message{"", "", {{"f", R"({"a": 1})"}}}));
  EXPECT_EQ(parse_all_ways(tools("hermes"),
                           R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)"),
            (Message{"", "", {{"f", R"({"a": 1})"}}}));
  EXPECT_EQ(parse_all_ways(tools("hermes"), R"(<tool_call>{"name": "f"}</tool_call> done)"),
            (Message{"", "done", {{"f", "{}"}}}));
}

TEST(OutputParser, HermesTextThatIsNoCall) {
  for (const char* text :
       {"<tool_call> is a tag", "<tool_call>{\"name\": 7}", "<tool_call>{\"a\": 1}",
        "a < b <tool_cal", "<tool_call>{\"nam", "x <tool_call>[1]"}) {
    EXPECT_EQ(parse_all_ways(tools("hermes"), text), (Message{"", text, {}}));
  }
  // Cut within the arguments: the client gets what there is.
  EXPECT_EQ(parse_all_ways(tools("hermes"), R"(<tool_call>{"name": "f", "arguments": {"a": "b)"),
            (Message{"", "", {{"f", R"({"a": "b)"}}}));
}

TEST(OutputParser, HermesArgumentsStream) {
  const auto parser = make_output_parser(tools("hermes"));
  MessageDelta delta;
  parser->push(R"(<tool_call>{"name": "write", "arguments": {"text": "one)", delta);
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].name, "write");
  EXPECT_EQ(delta.tool_calls[0].arguments, R"({"text": "one)");
  EXPECT_EQ(delta.tool_calls[0].id.size(), 29u);
  MessageDelta next;
  parser->push(" two", next);
  ASSERT_EQ(next.tool_calls.size(), 1u);
  EXPECT_EQ(next.tool_calls[0].arguments, " two");
  EXPECT_EQ(next.tool_calls[0].id, "");
}

TEST(OutputParser, ReasoningAndCallsTogether) {
  OutputParserOptions options = tools("hermes");
  options.reasoning_parser = "qwen3";
  EXPECT_EQ(parse_all_ways(options,
                           "<think>\nuse <tool_call>?\n</think>\n\n<tool_call>\n{\"name\": "
                           "\"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"),
            (Message{"\nuse <tool_call>?\n", "", {{"f", R"({"x": 1})"}}}));
}

TEST(OutputParser, LlamaCalls) {
  const std::vector<Call> one{{"get_weather", R"({"city": "Köln"})"}};
  const std::string call = R"({"name": "get_weather", "parameters": {"city": "Köln"}})";
  EXPECT_EQ(parse_all_ways(tools("llama3_json"), call), (Message{"", "", one}));
  EXPECT_EQ(parse_all_ways(tools("llama3_json"), "<|python_tag|>" + call), (Message{"", "", one}));
  EXPECT_EQ(parse_all_ways(tools("llama3_json"),
                           R"({"type": "function", "name": "f", "parameters": {}})"),
            (Message{"", "", {{"f", "{}"}}}));
  EXPECT_EQ(parse_all_ways(tools("llama3_json"), call + "; " + call).calls.size(), 2u);
  for (const char* text :
       {"The {\"name\": 1} key", "{\"answer\": 42}", "{", "", "<|pyth", "{\"name\""}) {
    EXPECT_EQ(parse_all_ways(tools("llama3_json"), text), (Message{"", text, {}}));
  }
}

TEST(OutputParser, MistralCalls) {
  const std::vector<Call> two{{"add", R"({"a": 1, "b": [2]})"}, {"now", "{}"}};
  EXPECT_EQ(parse_all_ways(tools("mistral"),
                           R"([TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": [2]}}, )"
                           R"({"name": "now", "arguments": {}}])"),
            (Message{"", "", two}));
  EXPECT_EQ(parse_all_ways(tools("mistral"),
                           R"(Sure.[TOOL_CALLS]add{"a": 1, "b": [2]}[TOOL_CALLS]now{})"),
            (Message{"", "Sure.", two}));
  EXPECT_EQ(parse_all_ways(tools("mistral"),
                           "[TOOL_CALLS]add[CALL_ID]aB3dE6gH9[ARGS]{\"a\": 1, "
                           "\"b\": [2]}[TOOL_CALLS]now[ARGS]{}"),
            (Message{"", "", two}));
  EXPECT_EQ(parse_all_ways(tools("mistral"), "see [TOOL_CALL"),
            (Message{"", "see [TOOL_CALL", {}}));
  const auto parser = make_output_parser(tools("mistral"));
  MessageDelta delta;
  parser->push("[TOOL_CALLS]f{", delta);
  EXPECT_EQ(delta.tool_calls.at(0).id.size(), 9u);
}

TEST(OutputParser, DeepSeekCalls) {
  const std::vector<Call> two{{"get_weather", R"({"city": "Köln"})"}, {"now", "{}"}};
  EXPECT_EQ(
      parse_all_ways(tools("deepseek_v3"),
                     "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
                     "get_weather\n```json\n{\"city\": \"Köln\"}\n```<｜tool▁call▁end｜>\n"
                     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
                     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      (Message{"", "Let me see.", two}));
  EXPECT_EQ(parse_all_ways(tools("deepseek_v31"),
                           "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
                           "{\"city\": \"Köln\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now"
                           "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            (Message{"", "", two}));
  EXPECT_EQ(parse_all_ways(tools("deepseek_v3"), "a <｜tool▁ca"),
            (Message{"", "a <｜tool▁ca", {}}));
}

TEST(OutputParser, QwenXmlCalls) {
  OutputParserOptions options = tools("qwen3_coder");
  options.tools = ordered_json::parse(R"([{"type": "function", "function": {"name": "edit",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"},
    "line": {"type": "integer"}, "ratio": {"type": "number"}, "force": {"type": "boolean"},
    "a/b": {"type": "array"}, "note": {"type": "string"}}}}}])");
  EXPECT_EQ(
      parse_all_ways(
          options,
          "I will.\n\n<tool_call>\n<function=edit>\n<parameter=path>\n7\n</parameter>\n"
          "<parameter=line>\n12\n</parameter>\n<parameter=ratio>\n0.50\n</parameter>\n"
          "<parameter=force>\nTrue\n</parameter>\n<parameter=a/b>\n[1, \"x\"]\n</parameter>\n"
          "<parameter=note>\nline \"one\"\n  <b>two</b>\n\n</parameter>\n</function>\n"
          "</tool_call>"),
      (Message{
          "",
          "I will.",
          {{"edit", R"({"path": "7", "line": 12, "ratio": 0.50, "force": true, "a/b": [1, "x"], )"
                    R"("note": "line \"one\"\n  <b>two</b>\n"})"}}}));
  // No schema, a value of the wrong type, no closing marker, no <tool_call>.
  EXPECT_EQ(parse_all_ways(options, "<function=other><parameter=x>3</parameter></function>"),
            (Message{"", "", {{"other", R"({"x": "3"})"}}}));
  EXPECT_EQ(parse_all_ways(options,
                           "<tool_call><function=edit><parameter=line>twelve"
                           "<parameter=force>no</function></tool_call>"),
            (Message{"", "", {{"edit", R"({"line": "twelve", "force": "no"})"}}}));
  EXPECT_EQ(parse_all_ways(options,
                           "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n"
                           "<function=g>\n</function>\n</tool_call>"),
            (Message{"", "", {{"f", "{}"}, {"g", "{}"}}}));
  EXPECT_EQ(parse_all_ways(options, "x <functio"), (Message{"", "x <functio", {}}));
}

TEST(OutputParser, HarmonyChannels) {
  const std::string text =
      "<|channel|>analysis<|message|>Need the "
      "weather.<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Köln\"}<|call|>";
  const Message expected{"Need the weather.", "", {{"get_weather", R"({"city": "Köln"})"}}};
  EXPECT_EQ(parse_all_ways(reasoning("openai_gptoss"), text), expected);
  // The token that ends the output may be missing; the recipient may come before the channel.
  EXPECT_EQ(parse_all_ways(tools("openai"), text.substr(0, text.size() - 8)), expected);
  EXPECT_EQ(
      parse_all_ways(tools("openai"), " to=functions.f<|channel|>commentary json<|message|>{}"),
      (Message{"", "", {{"f", "{}"}}}));
  EXPECT_EQ(
      parse_all_ways(reasoning("openai_gptoss"),
                     "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>"
                     "analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>"
                     "Yes: a <| b.<|return|>"),
      (Message{"a < b\nso", "Yes: a <| b.", {}}));
  const std::string endless = "<|channel|>" + std::string(5000, 'x') + "<|message|>y";
  EXPECT_EQ(parse_all_ways(reasoning("openai_gptoss"), endless).content, endless);
  EXPECT_EQ(parse_all_ways(reasoning("openai_gptoss"), "just text"),
            (Message{"", "just text", {}}));
  EXPECT_EQ(parse_all_ways(reasoning("openai_gptoss"), "<|channel|>analysis<|message|>cut <|en"),
            (Message{"cut <|en", "", {}}));
}

TEST(OutputParser, SpecialTokensAreKeptWhereTheyAreMarkers) {
  EXPECT_TRUE(needs_special_tokens(reasoning("openai_gptoss")));
  EXPECT_TRUE(needs_special_tokens(tools("mistral")));
  EXPECT_FALSE(needs_special_tokens(tools("hermes")));
  EXPECT_FALSE(needs_special_tokens({}));
}

TEST(OutputParser, ReasoningMarkersAreTold) {
  EXPECT_EQ(reasoning_markers(reasoning("qwen3"))->end, "</think>");
  EXPECT_FALSE(reasoning_markers(reasoning("qwen3"))->open);
  EXPECT_TRUE(reasoning_markers(reasoning("qwen3", /*open=*/true))->open);
  EXPECT_TRUE(reasoning_markers(reasoning("deepseek_r1"))->open);
  EXPECT_FALSE(reasoning_markers({}));
  EXPECT_FALSE(reasoning_markers(reasoning("openai_gptoss")));
  EXPECT_TRUE(writes_channels(tools("openai")));
  EXPECT_FALSE(writes_channels(reasoning("qwen3")));
}

// Whatever the model writes: no crash, no endless loop, and the same however it is cut.
TEST(OutputParser, SurvivesAnything) {
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "<function=",
                                          "f>",
                                          "<parameter=",
                                          "x>",
                                          "</parameter>",
                                          "</function>",
                                          "{\"name\": \"f\"",
                                          ", \"arguments\": ",
                                          "{\"a\": 1}",
                                          "}",
                                          "{",
                                          "[",
                                          "]",
                                          "\"",
                                          ",",
                                          ";",
                                          " ",
                                          "\n",
                                          "[TOOL_CALLS]",
                                          "[ARGS]",
                                          "name",
                                          "<think>",
                                          "</think>",
                                          "<|channel|>",
                                          "analysis",
                                          "<|message|>",
                                          "<|end|>",
                                          "<|start|>",
                                          " to=functions.f",
                                          "<|call|>",
                                          "<｜tool▁calls▁begin｜>",
                                          "<｜tool▁call▁begin｜>",
                                          "<｜tool▁sep｜>",
                                          "<｜tool▁call▁end｜>",
                                          "```",
                                          "function",
                                          "<|python_tag|>",
                                          "\\"};
  Random random(5);
  for (const std::string& name : tool_call_parser_names()) {
    for (int round = 0; round < 150; ++round) {
      OutputParserOptions options = tools(name);
      if (random.chance(0.5)) options.reasoning_parser = "qwen3";
      options.call_list = random.chance(0.1);
      std::string text;
      const int64_t count = random.between(1, 15);
      for (int64_t i = 0; i < count; ++i) text += words[random.below(words.size())];
      parse_all_ways(options, text);
    }
  }
}

}  // namespace
}  // namespace vamp
