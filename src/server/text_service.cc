#include "server/text_service.h"

namespace vamp {

TextService::TextService(Tokenizer tokenizer, std::string chat_template, int threads)
    : tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      threads_(static_cast<size_t>(std::max(1, threads))) {}

TextService::~TextService() {
  join();
}

void TextService::join() {
  threads_.join();
}

std::string TextService::render(ChatPrompt prompt) {
  prompt.chat_template = chat_template_.empty()
                             ? choose_chat_template(tokenizer_.config(), !prompt.tools.is_null())
                             : chat_template_;
  ChatJson variables = special_token_variables(tokenizer_.config());
  variables.update(prompt.variables);
  prompt.variables = std::move(variables);
  std::unique_ptr<ChatRenderer> renderer;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_renderers_.empty()) {
      renderer = std::move(idle_renderers_.back());
      idle_renderers_.pop_back();
    }
  }
  if (!renderer) renderer = std::make_unique<ChatRenderer>();
  const auto give_back = [&] {
    const std::lock_guard lock(mutex_);
    idle_renderers_.push_back(std::move(renderer));
  };
  try {
    std::string text = renderer->render(prompt);
    give_back();
    return text;
  } catch (...) {
    give_back();
    throw;
  }
}

}  // namespace vamp
