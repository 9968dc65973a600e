#include "server/text_service.h"

namespace vamp {

TextService::TextService(Tokenizer tokenizer, std::string chat_template, int threads)
    : tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      threads_(static_cast<size_t>(std::max(1, threads))) {
  idle_renderers_.reserve(static_cast<size_t>(std::max(1, threads)));  // giving back cannot fail
}

TextService::~TextService() {
  join();
}

void TextService::join() {
  threads_.join();
}

template <typename Use>
auto TextService::with_renderer(Use use) {
  std::unique_ptr<ChatRenderer> renderer;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_renderers_.empty()) {
      renderer = std::move(idle_renderers_.back());
      idle_renderers_.pop_back();
    }
  }
  if (!renderer) renderer = std::make_unique<ChatRenderer>();
  const auto give_back = [&](ChatRenderer*) {
    const std::lock_guard lock(mutex_);
    idle_renderers_.push_back(std::move(renderer));
  };
  const std::unique_ptr<ChatRenderer, decltype(give_back)> borrowed(renderer.get(), give_back);
  return use(*borrowed);
}

std::string TextService::render(ChatPrompt prompt) {
  prompt.chat_template = chat_template_.empty()
                             ? choose_chat_template(tokenizer_.config(), !prompt.tools.is_null())
                             : chat_template_;
  ChatJson variables = special_token_variables(tokenizer_.config());
  variables.update(prompt.variables);
  prompt.variables = std::move(variables);
  return with_renderer([&](ChatRenderer& renderer) { return renderer.render(prompt); });
}

void TextService::check_templates() {
  with_renderer([&](ChatRenderer& renderer) {
    if (!chat_template_.empty()) return renderer.check(chat_template_);
    for (const auto& [name, text] : tokenizer_.config().chat_templates) renderer.check(text);
  });
}

}  // namespace vamp
