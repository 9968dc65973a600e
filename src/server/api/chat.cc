// POST /v1/chat/completions
#include "server/api/chat_request.h"
#include "server/api/request_common.h"
#include "server/api/routes.h"
#include "server/api/run_generation.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

Json tool_call_json(const ToolCallDelta& call, bool delta) {
  Json function = Json::object();
  if (!call.name.empty()) function["name"] = call.name;
  function["arguments"] = call.arguments;
  Json json = Json::object();
  if (!call.id.empty()) {
    json["id"] = call.id;
    json["type"] = "function";
  }
  if (delta) json["index"] = call.index;
  json["function"] = std::move(function);
  return json;
}

class ChatFormat final : public OpenAiFormat {
 public:
  ChatFormat(const ChatRequest& request, const Service& service, std::string id,
             const Tokenizer& tokenizer)
      : OpenAiFormat(request.stream, std::move(id), shown_model(service), "chat.completion.chunk"),
        request_(request),
        tokenizer_(tokenizer) {}

  void begin(const Generation& generation, std::string& out) override {
    for (size_t c = 0; c < generation.choices(); ++c) {
      open_delta(c, out);
      out += R"("role":"assistant","content":")";
      if (request_.echo) append_escaped(request_.last_message, out);
      out += '"';
      close_delta(c, {}, generation, out);
    }
  }

  void delta(size_t choice, const ChoiceDelta& delta, const Generation& generation,
             std::string& out) override {
    const bool reasoning = request_.include_reasoning && !delta.message.reasoning.empty();
    const bool said = reasoning || !delta.message.content.empty() ||
                      !delta.message.tool_calls.empty() || !delta.logprobs.empty() ||
                      !delta.token_ids.empty();
    if (!said && !delta.finished) return;
    open_delta(choice, out);
    const char* separator = "";
    const auto text = [&](const char* name, const std::string& value) {
      out += separator;
      fmt::format_to(std::back_inserter(out), R"("{}":")", name);
      append_escaped(value, out);
      out += '"';
      separator = ",";
    };
    if (reasoning) {  // both names are in use
      text("reasoning", delta.message.reasoning);
      text("reasoning_content", delta.message.reasoning);
    }
    if (!delta.message.content.empty()) text("content", delta.message.content);
    if (!delta.message.tool_calls.empty()) {
      Json calls = Json::array();
      for (const ToolCallDelta& call : delta.message.tool_calls)
        calls.push_back(tool_call_json(call, /*delta=*/true));
      out += separator;
      out += R"("tool_calls":)";
      out += dump(calls);
    }
    close_delta(choice, delta, generation, out);
  }

  std::string whole(const std::vector<ChoiceResult>& choices,
                    const Generation& generation) override {
    Json json = envelope("chat.completion", generation);
    for (size_t c = 0; c < choices.size(); ++c)
      json["choices"].push_back(choice_json(c, choices[c], generation.choice(c).end()));
    if (request_.generation.sampling.prompt_logprobs >= 0)
      json["prompt_logprobs"] = prompt_logprobs_json(tokenizer_, choices.front().prompt_logprobs);
    if (request_.generation.choice.token_ids)
      json["prompt_token_ids"] = request_.generation.prompts.front();
    return dump(json);
  }

 private:
  void open_delta(size_t choice, std::string& out) const {
    open_chunk(choice, out);
    out += R"(,"delta":{)";
  }

  void close_delta(size_t choice, const ChoiceDelta& delta, const Generation& generation,
                   std::string& out) const {
    out += R"(},"logprobs":)";
    out += delta.logprobs.empty() ? "null" : dump(logprobs_json(delta.logprobs));
    if (delta.finished) {
      const ChoiceEnd& end = generation.choice(choice).end();
      append_finish(shown_reason(end), end, out);
    } else {
      out += R"(,"finish_reason":null)";
    }
    close_chunk(delta, generation, out);
  }

  // As OpenAI has it: a call that was the model's own choice ends with "tool_calls".
  std::string shown_reason(const ChoiceEnd& end) const {
    return request_.named_tool && end.reason == "tool_calls" ? "stop" : end.reason;
  }

  Json choice_json(size_t index, const ChoiceResult& choice, const ChoiceEnd& end) const {
    Json message = {{"role", "assistant"}, {"content", nullptr}, {"refusal", nullptr}};
    const std::string content =
        (request_.echo ? request_.last_message : "") + choice.message.content;
    // Content is null only where tools were called and nothing was said.
    if (!content.empty() || choice.message.tool_calls.empty()) message["content"] = content;
    if (request_.include_reasoning && !choice.message.reasoning.empty()) {
      message["reasoning"] = choice.message.reasoning;
      message["reasoning_content"] = choice.message.reasoning;
    }
    if (!choice.message.tool_calls.empty()) {
      message["tool_calls"] = Json::array();
      for (const ToolCallDelta& call : choice.message.tool_calls)
        message["tool_calls"].push_back(tool_call_json(call, /*delta=*/false));
    }
    Json json = {{"index", index},
                 {"message", std::move(message)},
                 {"logprobs", nullptr},
                 {"finish_reason", shown_reason(end)},
                 {"stop_reason", stop_reason_json(end)}};
    if (request_.generation.choice.logprobs) json["logprobs"] = logprobs_json(choice.logprobs);
    if (request_.generation.choice.token_ids) json["token_ids"] = choice.token_ids;
    return json;
  }

  Json logprobs_json(const std::vector<TokenLogprob>& tokens) const {
    Json content = Json::array();
    for (const TokenLogprob& token : tokens) {
      Json entry = token_json(tokenizer_, token.token, token.logprob);
      entry["top_logprobs"] = Json::array();
      for (const auto& [id, logprob] : token.top)
        entry["top_logprobs"].push_back(token_json(tokenizer_, id, logprob));
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}};
  }

  const ChatRequest& request_;
  const Tokenizer& tokenizer_;
};

HttpResponse rendered_response(const ChatRequest& request) {
  HttpResponse response;
  response.body = dump({{"prompt", request.prompt_text},
                        {"prompt_token_ids", request.generation.prompts.front()},
                        {"token_ids", request.generation.prompts.front()}});
  return response;
}

}  // namespace

asio::awaitable<void> chat_completions(Service& service, const HttpRequest& http,
                                       HttpExchange& exchange) {
  const ChatRequest request =
      co_await service.text().run([&] { return prepare_chat(service, http); });
  ChatFormat format(request, service, response_id("chatcmpl-", http), service.text().tokenizer());
  co_await run_generation(service, request.generation, request.stream.stream, format, exchange);
}

asio::awaitable<void> render_chat(Service& service, const HttpRequest& http,
                                  HttpExchange& exchange) {
  const ChatRequest request =
      co_await service.text().run([&] { return prepare_chat(service, http); });
  co_await exchange.reply(rendered_response(request));
}

}  // namespace vamp
