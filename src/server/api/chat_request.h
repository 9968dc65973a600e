// A conversation with a chat model, whichever API it came by: rendered, tokenized, ready to run.
#pragma once

#include <optional>
#include <string>

#include "server/api/constraint.h"
#include "server/api/openai_format.h"
#include "server/generation.h"
#include "server/service.h"
#include "text/chat_renderer.h"

namespace vamp {

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

// The conversation in OpenAI's form, which is what chat templates expect.
struct Conversation {
  ChatPrompt prompt;
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string named_tool;                         // kNamed
  std::optional<RequestedConstraint> constraint;  // the tool choice's before that of the answer
  bool include_reasoning = true;
  bool add_special_tokens = false;  // templates write them out
  bool only_counted = false;        // not run: it may be longer than the model takes
};

struct ChatRequest {
  GenerationRequest generation;
  StreamOptions stream;
  std::string prompt_text;
  bool echo = false;
  std::string last_message;  // for echo
  bool include_reasoning = true;
  bool named_tool = false;  // tool_choice names one
  std::optional<RequestedConstraint> constraint;
};

// The messages, tools and template arguments of OpenAI's chat body; `format` is what the body asks
// of an answer. Throws ApiError.
Conversation read_conversation(const Fields& body, const Service& service,
                               std::optional<RequestedConstraint> format);

// Renders and tokenizes the conversation into `out.generation`; its constraint is yet to be
// applied. On a text thread. Throws ApiError, TemplateError.
void render_conversation(Service& service, Conversation conversation, ChatRequest& out);

// All of POST /v1/chat/completions. On a text thread.
ChatRequest prepare_chat(Service& service, const HttpRequest& http);

// --enable-auto-tool-choice and --tool-call-parser are needed for tools. Throws ApiError.
void check_tools_allowed(const Service& service);

}  // namespace vamp
