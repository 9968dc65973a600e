#include "server/api/run_generation.h"

#include <spdlog/spdlog.h>

#include "server/api/request_span.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

constexpr const char* kEventStream = "text/event-stream; charset=utf-8";
constexpr std::string_view kKeepAlive = ": keep-alive\n\n";

template <typename T>
void append(const std::vector<T>& more, std::vector<T>& list) {
  list.insert(list.end(), more.begin(), more.end());
}

// False: the client has gone.
asio::awaitable<bool> stream_deltas(Generation& generation, OutputFormat& format,
                                    HttpExchange& exchange) {
  std::string out;
  while (!generation.finished()) {
    const auto deltas = co_await generation.next();
    if (exchange.gone()) co_return false;
    out.clear();
    if (deltas.empty()) {
      if (!exchange.silent()) continue;
      out = kKeepAlive;
    }
    if (!exchange.started()) {
      co_await exchange.begin_stream(kEventStream);
      format.begin(generation, out);
    }
    for (const auto& [choice, delta] : deltas) format.delta(choice, delta, generation, out);
    if (generation.finished()) format.end(generation, out);
    co_await exchange.write(out);
  }
  co_return true;
}

asio::awaitable<void> stream(Generation& generation, OutputFormat& format, HttpExchange& exchange) {
  std::optional<ApiError> fault;
  try {
    if (!co_await stream_deltas(generation, format, exchange)) co_return;
  } catch (const boost::system::system_error&) {
    throw;  // the client has gone
  } catch (const std::exception& error) {
    if (!exchange.started()) throw;
    fault = api_error_of(error);
  }
  if (fault) {
    if (exchange.gone()) co_return;
    spdlog::warn("a stream ends with an error: {}", fault->what());
    std::string out;
    format.error(*fault, out);
    co_await exchange.write(out);
  }
  co_await exchange.end_stream();
}

asio::awaitable<void> collect(Generation& generation, OutputFormat& format,
                              HttpExchange& exchange) {
  std::vector<ChoiceResult> choices(generation.choices());
  while (!generation.finished()) {
    const auto deltas = co_await generation.next();
    if (exchange.gone()) co_return;
    for (const auto& [index, delta] : deltas) {
      ChoiceResult& choice = choices[index];
      append_message(delta.message, choice.message);
      append(delta.logprobs, choice.logprobs);
      append(delta.prompt_logprobs, choice.prompt_logprobs);
      append(delta.token_ids, choice.token_ids);
    }
  }
  HttpResponse response;
  response.body = format.whole(choices, generation);
  co_await exchange.reply(std::move(response));
}

}  // namespace

void append_message(const MessageDelta& delta, MessageDelta& message) {
  message.reasoning += delta.reasoning;
  message.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    auto& calls = message.tool_calls;
    const auto index = static_cast<size_t>(call.index);
    while (calls.size() <= index) {
      calls.emplace_back();
      calls.back().index = static_cast<int>(calls.size()) - 1;
    }
    calls[index].id += call.id;
    calls[index].name += call.name;
    calls[index].arguments += call.arguments;
  }
}

asio::awaitable<void> run_generation(Service& service, const GenerationRequest& request,
                                     bool streamed, OutputFormat& format, HttpExchange& exchange) {
  if (exchange.gone()) co_return;
  Generation generation(service.bridge(), service.text().tokenizer(), exchange, request,
                        service.options());
  const RequestSpan span(service, request, format.id(), generation);
  if (streamed) {
    co_await stream(generation, format, exchange);
  } else {
    co_await collect(generation, format, exchange);
  }
}

}  // namespace vamp
