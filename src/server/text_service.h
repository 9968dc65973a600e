// The text side of a served model: tokenizer, chat templates, and the threads that run both, so
// that neither the engine nor an io thread waits for them.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_renderer.h"
#include "text/tokenizer.h"

namespace vamp {

// Immutable but for its pools; any thread.
class TextService {
 public:
  // `chat_template` takes the place of the model's own; empty: the model's.
  TextService(Tokenizer tokenizer, std::string chat_template, int threads);
  ~TextService();
  void join();  // ends the threads, once nobody asks for more

  const Tokenizer& tokenizer() const { return tokenizer_; }

  // The conversation as the model's prompt. `variables` of chat_template_kwargs are in `prompt`
  // already; template and special tokens are filled in here. Throws TemplateError, Error.
  std::string render(ChatPrompt prompt);

  // Whether the templates that render() will use are templates at all. Throws TemplateError, Error.
  void check_templates();

  // Runs `work` on one of the text threads and goes on where it was awaited. What `work` throws is
  // thrown there. Results must be default-constructible.
  template <typename Work>
  boost::asio::awaitable<std::invoke_result_t<Work>> run(Work work) {
    auto outcome =
        co_await boost::asio::co_spawn(threads_, call(std::move(work)), boost::asio::use_awaitable);
    if (outcome.error) std::rethrow_exception(std::exchange(outcome.error, nullptr));
    co_return std::move(outcome.result);
  }

 private:
  // `use` of a renderer that nobody else uses meanwhile.
  template <typename Use>
  auto with_renderer(Use use);

  // An exception goes over whole: the text thread has let go of it when the awaiting one gets it.
  // (Left to co_spawn, the last of the two to do so ends it, which ThreadSanitizer takes for a
  // race, since it does not see libstdc++ count.)
  template <typename Result>
  struct Outcome {
    Result result{};
    std::exception_ptr error;
  };
  template <typename Work>
  static boost::asio::awaitable<Outcome<std::invoke_result_t<Work>>> call(Work work) {
    Outcome<std::invoke_result_t<Work>> outcome;
    try {
      outcome.result = work();
    } catch (...) {
      outcome.error = std::current_exception();
    }
    co_return std::move(outcome);
  }

  Tokenizer tokenizer_;
  std::string chat_template_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ChatRenderer>> idle_renderers_;  // one for each busy thread at most
  boost::asio::thread_pool threads_;
};

}  // namespace vamp
