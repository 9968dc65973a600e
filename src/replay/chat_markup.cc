#include "replay/chat_markup.h"

#include "base/error.h"

namespace vamp {
namespace {

// Contents that no template writes by itself.
constexpr const char* kHere = "VAMP-HERE-1";
constexpr const char* kNext = "VAMP-HERE-2";

std::string chatml(const std::vector<ChatMessage>& messages, bool generate) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n";
  }
  return text + (generate ? "<|im_start|>assistant\n" : "");
}

size_t find(const std::string& text, const char* content, const std::string& role) {
  const size_t at = text.find(content);
  if (at == std::string::npos) throw Error("the template leaves out a message of role {}", role);
  return at;
}

// What stands between the content of a message (or the start) and that of the next (or the end).
std::string cut(const ChatMarkup::Render& render, const std::string& role, const std::string& next,
                bool generate) {
  std::vector<ChatMessage> messages;
  if (role == "assistant" || role == "tool") messages.push_back({"user", "?"});  // what it answers
  if (!role.empty()) messages.push_back({role, kHere});
  if (!next.empty()) messages.push_back({next, kNext});
  const std::string text = render(messages, generate);
  const size_t begin = role.empty() ? 0 : find(text, kHere, role) + std::string(kHere).size();
  const size_t end = next.empty() ? text.size() : find(text, kNext, next);
  if (end < begin) throw Error("the template changes the order of messages");
  return text.substr(begin, end - begin);
}

}  // namespace

ChatMarkup::ChatMarkup() : ChatMarkup(chatml) {}

ChatMarkup::ChatMarkup(Render render) : render_(std::move(render)) {}

const std::string& ChatMarkup::first(const std::string& role) {
  return piece("", role, false);
}

const std::string& ChatMarkup::between(const std::string& role, const std::string& next) {
  return piece(role, next, false);
}

const std::string& ChatMarkup::answer(const std::string& role) {
  return piece(role, "", true);
}

const std::string& ChatMarkup::piece(const std::string& role, const std::string& next,
                                     bool generate) {
  const auto [found, added] = pieces_.try_emplace({role, next});
  if (!added) return found->second;
  try {
    found->second = cut(render_, role, next, generate);
  } catch (const Error& error) {
    if (fallback_.empty()) fallback_ = error.what();
    found->second = cut(chatml, role, next, generate);
  }
  return found->second;
}

}  // namespace vamp
