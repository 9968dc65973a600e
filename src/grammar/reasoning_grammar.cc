#include "grammar/reasoning_grammar.h"

#include <algorithm>

namespace vamp {
namespace {

class ReasoningMatcher final : public TokenMatcher {
 public:
  ReasoningMatcher(std::unique_ptr<TokenMatcher> answer, const ReasoningTokens& tokens)
      : answer_(std::move(answer)),
        tokens_(tokens),
        state_(tokens.open ? State::kReasoning : State::kBegin) {}

  void fill(std::span<uint32_t> allowed) override {
    if (state_ == State::kReasoning) {
      std::fill(allowed.begin(), allowed.end(), ~0u);
      return;
    }
    answer_->fill(allowed);
    if (state_ == State::kBegin && tokens_.begin)
      allowed[static_cast<size_t>(*tokens_.begin) / 32] |= 1u << (*tokens_.begin % 32);
  }

  bool accept(TokenId token) override {
    if (state_ == State::kReasoning) {
      if (token == tokens_.end) state_ = State::kAnswer;
      return true;
    }
    if (state_ == State::kBegin && tokens_.begin == token) {
      state_ = State::kReasoning;
      return true;
    }
    if (!answer_->accept(token)) return false;
    state_ = State::kAnswer;
    return true;
  }

 private:
  enum class State { kBegin, kReasoning, kAnswer };

  std::unique_ptr<TokenMatcher> answer_;
  ReasoningTokens tokens_;
  State state_;
};

class ReasoningGrammar final : public TokenGrammar {
 public:
  ReasoningGrammar(std::shared_ptr<const TokenGrammar> answer, const ReasoningTokens& tokens)
      : answer_(std::move(answer)), tokens_(tokens) {}

  std::unique_ptr<TokenMatcher> start(std::span<const TokenId> stop_tokens) const override {
    return std::make_unique<ReasoningMatcher>(answer_->start(stop_tokens), tokens_);
  }

 private:
  std::shared_ptr<const TokenGrammar> answer_;
  ReasoningTokens tokens_;
};

}  // namespace

std::shared_ptr<const TokenGrammar> after_reasoning(std::shared_ptr<const TokenGrammar> answer,
                                                    const ReasoningTokens& tokens) {
  return std::make_shared<const ReasoningGrammar>(std::move(answer), tokens);
}

}  // namespace vamp
