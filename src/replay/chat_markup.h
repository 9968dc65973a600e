// What a chat template writes around messages, as pieces: a replay builds each prompt by adding to
// the one before it, so that a prompt begins with exactly the tokens of the last.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace vamp {

struct ChatMessage {
  std::string role, content;
};

// Asks a template once for each kind of place and keeps the answer. Where the template fails or
// does not write a message out as it is, ChatML stands in, and fallback() says why. One thread.
class ChatMarkup {
 public:
  // The text of a conversation; with `generate` it ends with the header of the answer.
  using Render = std::function<std::string(const std::vector<ChatMessage>&, bool generate)>;

  ChatMarkup();  // ChatML, the form that most open models use
  explicit ChatMarkup(Render render);

  // Before the content of a conversation's first message. Roles are not empty.
  const std::string& first(const std::string& role);
  // Between the contents of two messages.
  const std::string& between(const std::string& role, const std::string& next);
  // Behind the content of the last message: up to and with the header of the answer.
  const std::string& answer(const std::string& role);

  // Why ChatML stood in, the first time; empty: it did not.
  const std::string& fallback() const { return fallback_; }

 private:
  const std::string& piece(const std::string& role, const std::string& next, bool generate);

  Render render_;
  std::string fallback_;
  std::map<std::pair<std::string, std::string>, std::string> pieces_;
};

}  // namespace vamp
