#include "server/api/run_generation.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

constexpr const char* kEventStream = "text/event-stream; charset=utf-8";
constexpr std::string_view kKeepAlive = ": keep-alive\n\n";

template <typename T>
void append(const std::vector<T>& more, std::vector<T>& list) {
  list.insert(list.end(), more.begin(), more.end());
}

asio::awaitable<void> stream(Generation& generation, OutputFormat& format, HttpExchange& exchange) {
  std::string out;
  std::optional<ApiError> fault;
  while (!generation.finished()) {
    std::vector<std::pair<size_t, ChoiceDelta>> deltas;
    try {
      deltas = co_await generation.next();
    } catch (const ApiError& error) {
      if (!exchange.started()) throw;
      fault = error;
    }
    if (exchange.gone()) co_return;
    if (fault) break;
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
    if (!generation.finished()) co_await exchange.write(out);
  }
  if (fault) {
    out.clear();
    format.error(*fault, out);
  } else {
    format.end(generation, out);
  }
  co_await exchange.write(out);
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
                        service.options().max_waiting_requests);
  if (streamed) {
    co_await stream(generation, format, exchange);
  } else {
    co_await collect(generation, format, exchange);
  }
}

}  // namespace vamp
