// OpenAI's POST /v1/responses, without state: nothing is stored between requests.
#include "server/api/blocks.h"
#include "server/api/request_common.h"
#include "server/api/responses_request.h"
#include "server/api/routes.h"
#include "server/api/run_generation.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

std::string item_id(const std::string& response, size_t index, const ContentBlock& block) {
  static constexpr const char* kPrefixes[] = {"rs", "msg", "fc"};
  return fmt::format("{}_{}_{}", kPrefixes[static_cast<size_t>(block.kind)], response, index);
}

Json part_json(const ContentBlock& block, const std::string& text) {
  if (block.kind == ContentBlock::Kind::kReasoning)
    return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

// An item as it is when it is `done`, or when it begins.
Json item_json(const std::string& id, const ContentBlock& block, bool done) {
  const char* status = done ? "completed" : "in_progress";
  if (block.kind == ContentBlock::Kind::kToolCall) {
    return {{"type", "function_call"},  {"id", id},
            {"call_id", block.call_id}, {"name", block.name},
            {"status", status},         {"arguments", done ? block.text : std::string()}};
  }
  Json content = Json::array();
  if (done) content.push_back(part_json(block, block.text));
  if (block.kind == ContentBlock::Kind::kReasoning) {
    return {{"type", "reasoning"},
            {"id", id},
            {"summary", Json::array()},
            {"content", content},
            {"status", status}};
  }
  return {{"type", "message"},
          {"id", id},
          {"role", "assistant"},
          {"status", status},
          {"content", content}};
}

class StreamedItems final : public BlockSequence {
 public:
  explicit StreamedItems(std::string response) : response_(std::move(response)) {}

  std::string* out = nullptr;

  void event(const char* type, Json data) {
    Json all = {{"type", type}, {"sequence_number", sequence_++}};
    all.update(data);
    *out += fmt::format("event: {}\ndata: {}\n\n", type, dump(all));
  }

 private:
  Json place(size_t index, const ContentBlock& block) const {
    Json at = {{"item_id", item_id(response_, index, block)}, {"output_index", index}};
    if (block.kind != ContentBlock::Kind::kToolCall) at["content_index"] = 0;
    return at;
  }

  void opened(size_t index, const ContentBlock& block) override {
    const Json item = item_json(item_id(response_, index, block), block, /*done=*/false);
    event("response.output_item.added", {{"output_index", index}, {"item", item}});
    if (block.kind == ContentBlock::Kind::kToolCall) return;
    Json part = place(index, block);
    part["part"] = part_json(block, "");
    event("response.content_part.added", std::move(part));
  }

  void grew(size_t index, const ContentBlock& block, std::string_view piece) override {
    static constexpr const char* kTypes[] = {"response.reasoning_text.delta",
                                             "response.output_text.delta",
                                             "response.function_call_arguments.delta"};
    Json data = place(index, block);
    data["delta"] = std::string(piece);
    if (block.kind == ContentBlock::Kind::kText) data["logprobs"] = Json::array();
    event(kTypes[static_cast<size_t>(block.kind)], std::move(data));
  }

  void closed(size_t index, const ContentBlock& block) override {
    Json data = place(index, block);
    if (block.kind == ContentBlock::Kind::kToolCall) {
      data["arguments"] = block.text;
      data["name"] = block.name;
      event("response.function_call_arguments.done", std::move(data));
    } else {
      Json part = data;
      data["text"] = block.text;
      if (block.kind == ContentBlock::Kind::kText) data["logprobs"] = Json::array();
      event(block.kind == ContentBlock::Kind::kText ? "response.output_text.done"
                                                    : "response.reasoning_text.done",
            std::move(data));
      part["part"] = part_json(block, block.text);
      event("response.content_part.done", std::move(part));
    }
    event("response.output_item.done",
          {{"output_index", index},
           {"item", item_json(item_id(response_, index, block), block, /*done=*/true)}});
  }

  const std::string response_;
  int sequence_ = 0;
};

class ResponsesFormat final : public OutputFormat {
 public:
  ResponsesFormat(const ResponsesRequest& request, std::string id, std::string model)
      : request_(request), id_(std::move(id)), model_(std::move(model)), items_(id_) {}

  const std::string& id() const override { return id_; }
  void begin(const Generation&, std::string& out) override {
    items_.out = &out;
    const Json response = response_json("in_progress", nullptr);
    items_.event("response.created", {{"response", response}});
    items_.event("response.in_progress", {{"response", response}});
  }

  void delta(size_t, const ChoiceDelta& delta, const Generation&, std::string& out) override {
    items_.out = &out;
    items_.add(delta.message);
    if (delta.finished) items_.finish();
  }

  void end(const Generation& generation, std::string& out) override {
    items_.out = &out;
    const Json response = finished_json(items_, generation);
    items_.event(cut(generation) ? "response.incomplete" : "response.completed",
                 {{"response", response}});
  }

  void error(const ApiError& error, std::string& out) override {
    items_.out = &out;
    Json response = response_json("failed", nullptr);
    response["error"] = {{"code", "server_error"}, {"message", error.what()}};
    items_.event("response.failed", {{"response", response}});
  }

  std::string whole(const std::vector<ChoiceResult>& choices,
                    const Generation& generation) override {
    BlockSequence blocks;
    blocks.add(choices.front().message);
    return dump(finished_json(blocks, generation));
  }

 private:
  static bool cut(const Generation& generation) {
    return generation.choice(0).end().reason == "length";
  }

  Json response_json(const char* status, const Generation* generation) const {
    Json json = {{"id", id_},        {"object", "response"},   {"created_at", created_},
                 {"status", status}, {"error", nullptr},       {"incomplete_details", nullptr},
                 {"model", model_},  {"output", Json::array()}};
    json.update(request_.echoed);
    json["usage"] = nullptr;
    if (generation) {
      const int prompt = generation->prompt_tokens();
      const int completion = generation->completion_tokens();
      json["usage"] = {{"input_tokens", prompt},
                       {"input_tokens_details", {{"cached_tokens", generation->cached_tokens()}}},
                       {"output_tokens", completion},
                       {"output_tokens_details", {{"reasoning_tokens", 0}}},
                       {"total_tokens", prompt + completion}};
    }
    return json;
  }

  Json finished_json(const BlockSequence& blocks, const Generation& generation) const {
    Json json = response_json(cut(generation) ? "incomplete" : "completed", &generation);
    if (cut(generation)) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (size_t i = 0; i < blocks.blocks().size(); ++i) {
      const ContentBlock& block = blocks.blocks()[i];
      json["output"].push_back(item_json(item_id(id_, i, block), block, /*done=*/true));
    }
    return json;
  }

  const ResponsesRequest& request_;
  const std::string id_, model_;
  const int64_t created_ = unix_time();
  StreamedItems items_;
};

}  // namespace

asio::awaitable<void> responses(Service& service, const HttpRequest& http, HttpExchange& exchange) {
  const ResponsesRequest request =
      co_await service.text().run([&] { return prepare_responses(service, http); });
  ResponsesFormat format(request, response_id("resp_", http), shown_model(service));
  co_await run_generation(service, request.chat.generation, request.chat.stream.stream, format,
                          exchange);
}

}  // namespace vamp
