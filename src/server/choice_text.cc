#include "server/choice_text.h"

#include <algorithm>

namespace vamp {

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const ChoiceOptions& options)
    : options_(options),
      detokenizer_(tokenizer, options.detokenizer),
      parser_(make_output_parser(options.parser)) {}

bool ChoiceText::is_stop_token(TokenId token) const {
  return tokens_ >= options_.min_tokens &&
         std::find(options_.stop_token_ids.begin(), options_.stop_token_ids.end(), token) !=
             options_.stop_token_ids.end();
}

void ChoiceText::push(const EngineEvent& event, ChoiceDelta& out) {
  if (finished_) return;
  if (event.finished) {
    end_.reason = event.reason == FinishReason::kStop     ? "stop"
                  : event.reason == FinishReason::kLength ? "length"
                                                          : "abort";
    if (event.reason == FinishReason::kStop && stop_token_) end_.stop_reason = *stop_token_;
    finish(out);
    return;
  }
  if (event.prompt) {
    out.prompt_logprobs.push_back({event.token, event.logprob, event.top_logprobs});
    return;
  }
  ++tokens_;
  ++out.tokens;
  if (options_.token_ids) out.token_ids.push_back(event.token);
  if (options_.logprobs) out.logprobs.push_back({event.token, event.logprob, event.top_logprobs});
  // The token that ends the answer is not part of its text.
  if (is_stop_token(event.token)) {
    stop_token_ = event.token;
    if (!options_.detokenizer.include_stop_in_output) return;
  }
  parser_->push(detokenizer_.push(event.token), out.message);
  if (detokenizer_.stopped()) {
    end_.reason = "stop";
    end_.stop_reason = *detokenizer_.stop_reason();
    finish(out);
  }
  called_tools_ |= !out.message.tool_calls.empty();
}

void ChoiceText::finish(ChoiceDelta& out) {
  finished_ = out.finished = true;
  parser_->push(detokenizer_.finish(), out.message);
  // A last text can complete a stop string only in part: what was held back is text then.
  parser_->finish(out.message);
  called_tools_ |= !out.message.tool_calls.empty();
  if (called_tools_ && end_.reason == "stop") end_.reason = "tool_calls";
}

}  // namespace vamp
