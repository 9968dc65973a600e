// Chat templates: a model's Jinja text and a conversation become the prompt. The text is the same,
// byte for byte, as that of Hugging Face's apply_chat_template, because it is Jinja2 that renders,
// in a child process with limits (chat_renderer.py).
#pragma once

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/child_process.h"
#include "text/tokenizer_config.h"

namespace vamp {

// The request's fault: the template has refused the conversation (with its own words), cannot
// render it, or ran into a limit.
class TemplateError : public Error {
 public:
  using Error::Error;
};

struct ChatRendererOptions {
  // The interpreter; it must have Jinja2 (Debian: python3-jinja2).
  std::string python = "/usr/bin/python3";
  int cpu_seconds = 5;                  // processor time of one rendering
  Micros timeout = 60 * kSecond;        // real time of one rendering, waiting for others left out
  Micros start_timeout = 60 * kSecond;  // real time until the process answers at all
  size_t memory_bytes = 512 * kMiB;     // address space of the process
  size_t input_bytes = 64 * kMiB;       // template and conversation as JSON
  size_t output_characters = 16 << 20;  // of the prompt
};

// JSON as it came: members in the order of the request, since templates write them out again.
using ChatJson = nlohmann::ordered_json;

struct ChatPrompt {
  std::string chat_template;                // Jinja text
  ChatJson messages;                        // [{"role": …, "content": …, …}, …]
  ChatJson tools = nullptr;                 // list of JSON schemas, or null
  ChatJson documents = nullptr;             // list of objects, or null
  ChatJson variables = ChatJson::object();  // special tokens, and what chat_template_kwargs sets
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the prompt ends with the last message's text
};

// The template for this request: "tool_use" if there are tools and the model has it, else
// "default". Throws Error when the model has none.
const std::string& choose_chat_template(const TokenizerConfig& config, bool has_tools);

// What the child process is asked for this prompt, and that as the text it gets. Throw
// TemplateError.
ChatJson render_request(const ChatPrompt& prompt);
std::string render_request_text(ChatJson request, const ChatRendererOptions& options);

// bos_token and its kin as the variables that templates expect.
ChatJson special_token_variables(const TokenizerConfig& config);

// The arguments of tool calls, which come as JSON text, as objects: what templates expect. Text
// that is no JSON, or nested too deeply, stays as it is.
void parse_tool_arguments(ChatJson& messages);

// Owns the child process: started with the first rendering, started anew after it was ended for
// running away. Any thread; one rendering at a time, others wait. Never call it from the thread
// that drives the engine.
class ChatRenderer {
 public:
  explicit ChatRenderer(ChatRendererOptions options = {});

  // The prompt. Throws TemplateError for what the request or the template is to blame for, Error
  // when the process cannot be started.
  std::string render(const ChatPrompt& prompt);

  // Throws TemplateError when the text is no template at all, whatever the conversation; Error as
  // render() does.
  void check(const std::string& chat_template);

 private:
  std::string ask(ChatJson request);
  void start();
  [[noreturn]] void fail(ChildProcess::Outcome outcome);

  ChatRendererOptions options_;
  std::mutex mutex_;
  std::unique_ptr<ChildProcess> process_;
};

extern const char* const kChatRendererScript;

}  // namespace vamp
