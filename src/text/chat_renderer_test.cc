#include "text/chat_renderer.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace vamp {
namespace {

using testing::HasSubstr;

ChatPrompt prompt_of(std::string chat_template) {
  ChatPrompt prompt;
  prompt.chat_template = std::move(chat_template);
  prompt.messages = ChatJson::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Wetter in Köln? <b>", "name": null}])");
  return prompt;
}

std::string fault_of(ChatRenderer& renderer, const ChatPrompt& prompt) {
  try {
    return "no fault, but: " + renderer.render(prompt);
  } catch (const TemplateError& error) {
    return error.what();
  }
}

class ChatRendererTest : public testing::Test {
 protected:
  std::string render(const std::string& chat_template) {
    return renderer_.render(prompt_of(chat_template));
  }
  ChatRenderer renderer_;
};

TEST_F(ChatRendererTest, RendersAConversation) {
  ChatPrompt prompt = prompt_of(
      "{{ bos_token }}{% for m in messages %}\n<|{{ m.role }}|>{{ m['content'] }}<|end|>\n"
      "{% endfor %}\n{% if add_generation_prompt %}<|assistant|>{% endif %}");
  prompt.variables["bos_token"] = "<s>";
  EXPECT_EQ(renderer_.render(prompt),
            "<s><|system|>Be brief.<|end|>\n<|user|>Wetter in Köln? <b><|end|>\n<|assistant|>");
  prompt.add_generation_prompt = false;
  EXPECT_EQ(renderer_.render(prompt),
            "<s><|system|>Be brief.<|end|>\n<|user|>Wetter in Köln? <b><|end|>\n");
}

TEST_F(ChatRendererTest, HasHuggingFacesEnvironment) {
  EXPECT_EQ(render("{{ {'a': 'é<&', 'b': 1.0} | tojson }}"), R"({"a": "é<&", "b": 1.0})");
  EXPECT_EQ(render("{{ [1] | tojson(indent=2) }}"), "[\n  1\n]");
  EXPECT_EQ(
      render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
      "01");
  EXPECT_EQ(render("  {% if true %}\nx\n  {% endif %}\n"), "x\n");  // blocks are trimmed
  EXPECT_EQ(render("{% set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}"), "2");
  EXPECT_EQ(render("{% generation %}{{ 1 + 1 }}{% endgeneration %}"), "2");
  EXPECT_EQ(render("{{ messages[1].name is defined }}"), "False");  // null members are dropped
  EXPECT_EQ(render("{{ strftime_now('%Y') | length }}"), "4");
  EXPECT_EQ(render("{{ tools is none and documents is none }}"), "True");
}

TEST_F(ChatRendererTest, KeepsTheOrderOfMembers) {
  ChatPrompt prompt = prompt_of("{{ tools[0] | tojson }}");
  prompt.tools = ChatJson::parse(R"([{"zebra": 1, "ant": {"y": 2.50, "b": null}}])");
  EXPECT_EQ(renderer_.render(prompt), R"({"zebra": 1, "ant": {"y": 2.5, "b": null}})");
}

TEST_F(ChatRendererTest, GivesReasoningUnderEveryName) {
  ChatPrompt prompt = prompt_of("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}");
  prompt.messages = ChatJson::parse(R"([{"role": "assistant", "reasoning": "hm"}])");
  EXPECT_EQ(renderer_.render(prompt), "hm|hm");
}

TEST_F(ChatRendererTest, ContinuesTheFinalMessage) {
  ChatPrompt prompt =
      prompt_of("{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}");
  prompt.messages = ChatJson::parse(R"([{"role": "user", "content": "Count"},
                                        {"role": "assistant", "content": "One, two "}])");
  prompt.add_generation_prompt = false;
  prompt.continue_final_message = true;
  EXPECT_EQ(renderer_.render(prompt), "[user]Count[end][assistant]One, two ");
  prompt.add_generation_prompt = true;
  EXPECT_THAT(fault_of(renderer_, prompt), HasSubstr("exclude each other"));
}

TEST_F(ChatRendererTest, PassesOnWhatTheTemplateSays) {
  EXPECT_EQ(fault_of(renderer_, prompt_of("{{ raise_exception('Roles must alternate') }}")),
            "Roles must alternate");
  EXPECT_THAT(fault_of(renderer_, prompt_of("{{ messages[9].role }}")), HasSubstr("no element 9"));
  EXPECT_THAT(fault_of(renderer_, prompt_of("{% if %}")), HasSubstr("xpected"));
  ChatPrompt empty = prompt_of("x");
  empty.messages = ChatJson::array();
  EXPECT_THAT(fault_of(renderer_, empty), HasSubstr("at least one message"));
  EXPECT_EQ(render("still {{ 1 }}"), "still 1");
}

TEST_F(ChatRendererTest, ChecksATemplateWithoutAConversation) {
  const auto fault = [&](const std::string& chat_template) -> std::string {
    try {
      renderer_.check(chat_template);
    } catch (const TemplateError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(fault("{{ raise_exception('no messages') }}{% generation %}{% endgeneration %}"), "");
  EXPECT_THAT(fault("{{ 1 }}\n{% for %}"), HasSubstr("line 2"));
  EXPECT_THAT(fault("{{ 1 | no_such_filter }}"), HasSubstr("no_such_filter"));
  EXPECT_THAT(fault("\xFF{{ 1 }}"), HasSubstr("UTF-8"));
}

TEST_F(ChatRendererTest, TemplatesStayInTheSandbox) {
  for (const char* attack :
       {"{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ namespace(__class__=1) }}",
        "{{ raise_exception.__globals__ }}", "{{ dict.__init__ }}",
        "{{ self.__init__.__globals__ }}", "{{ cycler.__init__.__globals__.os.system('id') }}",
        "{% include '/etc/passwd' %}"}) {
    const std::string got = fault_of(renderer_, prompt_of(attack));
    EXPECT_TRUE(got.find("no fault") == std::string::npos || got == "no fault, but: ")
        << attack << ": " << got;
  }
}

TEST(ChatRenderer, EndsWhatRunsAwayAndGoesOn) {
  ChatRenderer renderer({.cpu_seconds = 1,
                         .timeout = 280 * kSecond,
                         .memory_bytes = 256 * kMiB,
                         .output_characters = 100'000});
  EXPECT_THAT(fault_of(renderer, prompt_of("{% for a in range(99999) %}{% for b in range(99999) %}"
                                           "{% endfor %}{% endfor %}")),
              HasSubstr("more than 1 s of processor time"));
  EXPECT_THAT(fault_of(renderer, prompt_of("{{ 'a' * 2000000000 }}")), HasSubstr("memory"));
  EXPECT_THAT(fault_of(renderer, prompt_of("{{ 'a' * 200000 }}")),
              HasSubstr("more than 100000 characters"));
  EXPECT_EQ(renderer.render(prompt_of("fine")), "fine");
}

TEST(ChatRenderer, SaysWhatIsMissing) {
  ChatRenderer nowhere({.python = "/nowhere/python3"});
  EXPECT_THROW(nowhere.render(prompt_of("x")), Error);
  ChatRenderer no_python({.python = "/bin/true"});
  try {
    no_python.render(prompt_of("x"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("apt-get install python3-jinja2"));
  }
}

int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

TEST(ChatRenderer, LeavesNothingBehind) {
  const int before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    ChatRenderer renderer;
    EXPECT_EQ(renderer.render(prompt_of("x")), "x");
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ChatRendererTest, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const std::string text = std::to_string(100 * i + round);
        EXPECT_EQ(render("{{ " + text + " }}"), text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ChatTemplate, IsChosenByTools) {
  TokenizerConfig config;
  EXPECT_THROW(choose_chat_template(config, false), Error);
  config.chat_templates["default"] = "d";
  EXPECT_EQ(choose_chat_template(config, true), "d");
  config.chat_templates["tool_use"] = "t";
  EXPECT_EQ(choose_chat_template(config, true), "t");
  EXPECT_EQ(choose_chat_template(config, false), "d");
}

TEST(ChatTemplate, ToolArgumentsBecomeObjects) {
  ChatJson messages = ChatJson::parse(R"([{"role": "assistant", "tool_calls": [
    {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
    {"function": {"name": "g", "arguments": "not json"}},
    {"function": {"name": "h"}}, 7]}, {"role": "user", "content": "x"}])");
  parse_tool_arguments(messages);
  const ChatJson& calls = messages[0]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(calls[1]["function"]["arguments"], "not json");
  EXPECT_EQ(calls[2]["function"]["arguments"].dump(), "{}");
}

}  // namespace
}  // namespace vamp
