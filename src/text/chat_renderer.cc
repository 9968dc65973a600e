#include "text/chat_renderer.h"

#include <signal.h>

#include "text/json_depth.h"

namespace vamp {
namespace {

// A reply is JSON in ASCII: at most twelve bytes a character, and a few around them.
constexpr size_t kReplyBytesPerCharacter = 12;
constexpr size_t kReplyOverhead = 4096;

}  // namespace

const std::string& choose_chat_template(const TokenizerConfig& config, bool has_tools) {
  const auto& templates = config.chat_templates;
  if (const auto it = templates.find("tool_use"); has_tools && it != templates.end()) {
    return it->second;
  }
  const auto it = templates.find("default");
  if (it == templates.end()) {
    throw Error(
        "the model has no chat template: pass one with --chat-template, or use completions");
  }
  return it->second;
}

ChatJson special_token_variables(const TokenizerConfig& config) {
  ChatJson variables = ChatJson::object();
  const auto add = [&](const char* name, const std::string& token) {
    if (!token.empty()) variables[name] = token;
  };
  add("bos_token", config.bos_token);
  add("eos_token", config.eos_token);
  add("unk_token", config.unk_token);
  add("pad_token", config.pad_token);
  return variables;
}

void parse_tool_arguments(ChatJson& messages) {
  for (ChatJson& message : messages) {
    if (!message.is_object() || !message.contains("tool_calls")) continue;
    for (ChatJson& call : message["tool_calls"]) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
        continue;
      ChatJson& function = call["function"];
      if (!function.contains("arguments") || function["arguments"].is_null()) {
        function["arguments"] = ChatJson::object();
      } else if (function["arguments"].is_string()) {
        const auto& text = function["arguments"].get_ref<const std::string&>();
        if (nested_deeper_than(text, kMostArgumentDepth)) continue;
        ChatJson parsed = ChatJson::parse(text, nullptr, false);
        if (!parsed.is_discarded()) function["arguments"] = std::move(parsed);
      }
    }
  }
}

ChatRenderer::ChatRenderer(ChatRendererOptions options) : options_(std::move(options)) {}

void ChatRenderer::start() {
  // -I: nothing of the user's environment or of the current folder is imported.
  process_ = std::make_unique<ChildProcess>(std::vector<std::string>{
      options_.python, "-I", "-c", kChatRendererScript, std::to_string(options_.memory_bytes)});
  std::string reply;
  if (process_->receive(options_.start_timeout, kReplyOverhead, reply) ==
      ChildProcess::Outcome::kOk) {
    return;
  }
  process_.reset();
  throw Error(
      "chat templates need Jinja2, and {} did not start with it: apt-get install "
      "python3-jinja2 (its own words are in the log)",
      options_.python);
}

void ChatRenderer::fail(ChildProcess::Outcome outcome) {
  const int signal = process_->end(outcome == ChildProcess::Outcome::kEnded);
  process_.reset();
  if (outcome == ChildProcess::Outcome::kTooLong) {
    throw TemplateError("the chat template writes more than {} characters",
                        options_.output_characters);
  }
  if (outcome == ChildProcess::Outcome::kTimeout) {
    throw TemplateError("the chat template took more than {:.0f} s", options_.timeout / kSecond);
  }
  if (signal == SIGXCPU) {
    throw TemplateError("the chat template took more than {} s of processor time",
                        options_.cpu_seconds);
  }
  throw TemplateError("the process that renders chat templates ended (signal {})", signal);
}

std::string ChatRenderer::render(const ChatPrompt& prompt) {
  return ask(render_request(prompt));
}

ChatJson render_request(const ChatPrompt& prompt) {
  if (!prompt.messages.is_array() || !prompt.variables.is_object()) {
    throw TemplateError("messages must be a list, and chat_template_kwargs an object");
  }
  if (prompt.add_generation_prompt && prompt.continue_final_message) {
    throw TemplateError("add_generation_prompt and continue_final_message exclude each other");
  }
  return {{"template", prompt.chat_template},
          {"messages", prompt.messages},
          {"tools", prompt.tools},
          {"documents", prompt.documents},
          {"variables", prompt.variables},
          {"add_generation_prompt", prompt.add_generation_prompt},
          {"continue_final_message", prompt.continue_final_message}};
}

std::string render_request_text(ChatJson request, const ChatRendererOptions& options) {
  request["cpu_seconds"] = options.cpu_seconds;
  request["output_limit"] = options.output_characters;
  std::string text;
  try {
    text = request.dump();
  } catch (const ChatJson::exception&) {
    throw TemplateError("the chat template is not UTF-8 text");  // what JSON brings always is
  }
  if (text.size() > options.input_bytes) {
    throw TemplateError("the conversation has {}, the limit is {}", format_bytes(text.size()),
                        format_bytes(options.input_bytes));
  }
  return text;
}

void ChatRenderer::check(const std::string& chat_template) {
  ask({{"template", chat_template}});
}

std::string ChatRenderer::ask(ChatJson request) {
  const std::string text = render_request_text(std::move(request), options_);
  const std::lock_guard lock(mutex_);
  if (!process_) start();
  std::string reply;
  const size_t limit = options_.output_characters * kReplyBytesPerCharacter + kReplyOverhead;
  const auto outcome = process_->exchange(text, options_.timeout, limit, reply);
  if (outcome != ChildProcess::Outcome::kOk) fail(outcome);
  const ChatJson answer = ChatJson::parse(reply, nullptr, false);
  if (!answer.is_object()) fail(ChildProcess::Outcome::kEnded);
  if (answer.contains("error")) throw TemplateError("{}", answer["error"].get<std::string>());
  return answer.at("text").get<std::string>();
}

}  // namespace vamp
