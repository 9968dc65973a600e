// Anthropic's POST /v1/messages and /v1/messages/count_tokens
#include "server/api/blocks.h"
#include "server/api/messages_request.h"
#include "server/api/request_common.h"
#include "server/api/routes.h"
#include "server/api/run_generation.h"
#include "text/json_depth.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

void append_event(const char* type, const Json& data, std::string& out) {
  out += fmt::format("event: {}\ndata: {}\n\n", type, dump(data));
}

Json block_json(const ContentBlock& block, bool empty) {
  const std::string text = empty ? std::string() : block.text;
  switch (block.kind) {
    case ContentBlock::Kind::kReasoning:
      return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
    case ContentBlock::Kind::kText:
      return {{"type", "text"}, {"text", text}};
    case ContentBlock::Kind::kToolCall:
      break;
  }
  Json input = Json::object();
  if (!nested_deeper_than(text, kMostArgumentDepth)) input = Json::parse(text, nullptr, false);
  if (!input.is_object()) input = Json::object();
  return {{"type", "tool_use"}, {"id", block.call_id}, {"name", block.name}, {"input", input}};
}

class StreamedBlocks final : public BlockSequence {
 public:
  std::string* out = nullptr;

 private:
  void opened(size_t index, const ContentBlock& block) override {
    append_event("content_block_start",
                 {{"type", "content_block_start"},
                  {"index", index},
                  {"content_block", block_json(block, /*empty=*/true)}},
                 *out);
  }
  void grew(size_t index, const ContentBlock& block, std::string_view piece) override {
    static constexpr const char* kTypes[] = {"thinking_delta", "text_delta", "input_json_delta"};
    static constexpr const char* kFields[] = {"thinking", "text", "partial_json"};
    const auto kind = static_cast<size_t>(block.kind);
    *out += fmt::format(
        R"(event: content_block_delta{}data: {{"type":"content_block_delta","index":{},"delta":{{"type":"{}","{}":")",
        '\n', index, kTypes[kind], kFields[kind]);
    append_escaped(piece, *out);
    *out += "\"}}\n\n";
  }
  void closed(size_t index, const ContentBlock&) override {
    append_event("content_block_stop", {{"type", "content_block_stop"}, {"index", index}}, *out);
  }
};

class MessagesFormat final : public OutputFormat {
 public:
  MessagesFormat(std::string id, std::string model)
      : id_(std::move(id)), model_(std::move(model)) {}

  const std::string& id() const override { return id_; }
  void begin(const Generation& generation, std::string& out) override {
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = message["stop_sequence"] = nullptr;
    message["usage"] = usage(generation);
    append_event("message_start", {{"type", "message_start"}, {"message", message}}, out);
    append_event("ping", {{"type", "ping"}}, out);
  }

  void delta(size_t, const ChoiceDelta& delta, const Generation&, std::string& out) override {
    blocks_.out = &out;
    blocks_.add(delta.message);
    if (delta.finished) blocks_.finish();
  }

  void end(const Generation& generation, std::string& out) override {
    Json delta = Json::object();
    stop(generation.choice(0).end(), delta);
    append_event("message_delta",
                 {{"type", "message_delta"}, {"delta", delta}, {"usage", usage(generation)}}, out);
    append_event("message_stop", {{"type", "message_stop"}}, out);
  }

  void error(const ApiError& error, std::string& out) override {
    out += "event: error\ndata: " + error.anthropic_json() + "\n\n";
  }

  std::string whole(const std::vector<ChoiceResult>& choices,
                    const Generation& generation) override {
    BlockSequence blocks;
    blocks.add(choices.front().message);
    Json message = head();
    message["content"] = Json::array();
    for (const ContentBlock& block : blocks.blocks())
      message["content"].push_back(block_json(block, /*empty=*/false));
    stop(generation.choice(0).end(), message);
    message["usage"] = usage(generation);
    return dump(message);
  }

 private:
  Json head() const {
    return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", model_}};
  }

  static void stop(const ChoiceEnd& end, Json& out) {
    const auto* text = std::get_if<std::string>(&end.stop_reason);
    out["stop_reason"] = text                         ? "stop_sequence"
                         : end.reason == "tool_calls" ? "tool_use"
                         : end.reason == "length"     ? "max_tokens"
                                                      : "end_turn";
    out["stop_sequence"] = text ? Json(*text) : Json();
  }

  // Anthropic counts what came from the cache apart.
  static Json usage(const Generation& generation) {
    return {{"input_tokens", generation.prompt_tokens() - generation.cached_tokens()},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", generation.cached_tokens()},
            {"output_tokens", generation.completion_tokens()}};
  }

  const std::string id_, model_;
  StreamedBlocks blocks_;
};

HttpResponse count_response(const ChatRequest& request) {
  HttpResponse response;
  response.body = dump({{"input_tokens", request.generation.prompts.front().size()}});
  return response;
}

}  // namespace

asio::awaitable<void> messages(Service& service, const HttpRequest& http, HttpExchange& exchange) {
  const ChatRequest request = co_await service.text().run(
      [&] { return prepare_messages(service, http, /*count_only=*/false); });
  MessagesFormat format(response_id("msg_", http), shown_model(service));
  co_await run_generation(service, request.generation, request.stream.stream, format, exchange);
}

asio::awaitable<void> count_message_tokens(Service& service, const HttpRequest& http,
                                           HttpExchange& exchange) {
  const ChatRequest request = co_await service.text().run(
      [&] { return prepare_messages(service, http, /*count_only=*/true); });
  co_await exchange.reply(count_response(request));
}

}  // namespace vamp
