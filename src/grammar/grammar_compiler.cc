#include "grammar/grammar_compiler.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "grammar/json_schema_check.h"
#include "grammar/xgrammar_log.h"

namespace vamp {
namespace {

class XGrammarMatcher final : public TokenMatcher {
 public:
  XGrammarMatcher(const xgrammar::CompiledGrammar& grammar, const std::vector<int>& stops)
      : matcher_(grammar, stops) {}

  void fill(std::span<uint32_t> allowed) override {
    std::fill(allowed.begin(), allowed.end(), ~0u);
    if (matcher_.IsTerminated()) return;
    int64_t words = static_cast<int64_t>(allowed.size());
    DLTensor mask{};
    mask.data = allowed.data();
    mask.device = {kDLCPU, 0};
    mask.ndim = 1;
    mask.dtype = xgrammar::GetBitmaskDLType();
    mask.shape = &words;
    matcher_.FillNextTokenBitmask(&mask);
  }

  bool accept(TokenId token) override {
    return matcher_.IsTerminated() || matcher_.AcceptToken(token);
  }

 private:
  xgrammar::GrammarMatcher matcher_;
};

class XGrammarGrammar final : public TokenGrammar {
 public:
  XGrammarGrammar(xgrammar::CompiledGrammar grammar, std::vector<int> stop_tokens)
      : grammar_(std::move(grammar)), stop_tokens_(std::move(stop_tokens)) {}

  std::unique_ptr<TokenMatcher> start(std::span<const TokenId> stop_tokens) const override {
    if (stop_tokens.empty()) return std::make_unique<XGrammarMatcher>(grammar_, stop_tokens_);
    return std::make_unique<XGrammarMatcher>(
        grammar_, std::vector<int>(stop_tokens.begin(), stop_tokens.end()));
  }

 private:
  xgrammar::CompiledGrammar grammar_;
  std::vector<int> stop_tokens_;  // where a request names none
};

// XGrammar lets control characters into strings of limited length, where JSON has none. JSON can do
// without them everywhere: it has escapes, and blanks and ends of lines as white space.
bool fits_json(const std::string& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r';
  });
}

xgrammar::TokenizerInfo tokenizer_info(const Tokenizer& tokenizer, int vocab_size, bool for_json) {
  VAMP_CHECK(static_cast<size_t>(vocab_size) >= tokenizer.id_count(),
             "{} rows of logits for {} tokens", vocab_size, tokenizer.id_count());
  // Tokens without bytes are never allowed. Special ones are left so: their names are no text that
  // a grammar could ask for.
  std::vector<std::string> texts(tokenizer.id_count());
  for (TokenId id = 0; id < static_cast<TokenId>(texts.size()); ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string& bytes = tokenizer.bytes(id);
    if (!for_json || fits_json(bytes)) texts[static_cast<size_t>(id)] = bytes;
  }
  // No stop tokens: each matcher is told its own, and these would pass as text without bytes.
  return xgrammar::TokenizerInfo(texts, xgrammar::VocabType::RAW, vocab_size,
                                 std::vector<int32_t>{});
}

nlohmann::json parse_schema(const std::string& text) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw Error("JSON schema: not JSON ({})", error.what());
  }
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string choice_grammar(const std::vector<std::string>& choices) {
  if (choices.empty()) throw Error("choice: the list is empty");
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) throw Error("choice: entry {} is empty", i);
    grammar += (i == 0 ? "" : " | ") + quoted(choices[i]);
  }
  return grammar;
}

// The oneOf that XGrammar cannot prove disjoint becomes anyOf: allowed, as vLLM does.
bool tolerated(const std::string& warning) {
  return warning.find("oneOf") != std::string::npos;
}

std::string cache_key(const OutputConstraint& constraint) {
  std::string key(1, static_cast<char>('a' + constraint.index()));
  if (const auto* schema = std::get_if<JsonSchemaConstraint>(&constraint)) key += schema->schema;
  if (const auto* regex = std::get_if<RegexConstraint>(&constraint)) key += regex->pattern;
  if (const auto* ebnf = std::get_if<EbnfConstraint>(&constraint)) key += ebnf->grammar;
  if (const auto* choice = std::get_if<ChoiceConstraint>(&constraint)) {
    for (const std::string& text : choice->choices) key += fmt::format("{}:{}", text.size(), text);
  }
  return key;
}

// The most recently used grammars within a number of bytes.
class GrammarCache {
 public:
  explicit GrammarCache(size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<const TokenGrammar> find(const std::string& key) {
    const auto it = index_.find(key);
    if (it == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->grammar;
  }

  void add(const std::string& key, std::shared_ptr<const TokenGrammar> grammar, size_t bytes) {
    bytes += 2 * key.size();
    if (bytes > capacity_ || index_.count(key) != 0) return;
    entries_.push_front({key, std::move(grammar), bytes});
    index_[key] = entries_.begin();
    held_ += bytes;
    while (held_ > capacity_) {
      held_ -= entries_.back().bytes;
      index_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const TokenGrammar> grammar;
    size_t bytes = 0;
  };
  size_t capacity_, held_ = 0;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

}  // namespace

struct GrammarCompiler::Impl {
  // One thread: warnings then come on the one that asked. No cache of its own: what it has cached
  // comes without its warnings.
  Impl(const Tokenizer& tokenizer, int vocab_size, std::span<const TokenId> stop_tokens,
       const GrammarLimits& asked)
      : limits(asked),
        stops(stop_tokens.begin(), stop_tokens.end()),
        text(tokenizer_info(tokenizer, vocab_size, false), /*max_threads=*/1,
             /*cache_enabled=*/false),
        json(tokenizer_info(tokenizer, vocab_size, true), /*max_threads=*/1,
             /*cache_enabled=*/false),
        cache(asked.cache_bytes) {}

  xgrammar::CompiledGrammar operator()(const JsonObjectConstraint&) {
    return compile_schema(R"({"type":"object"})");
  }
  xgrammar::CompiledGrammar operator()(const JsonSchemaConstraint& constraint) {
    check_size(constraint.schema.size(), "JSON schema");
    check_json_schema(parse_schema(constraint.schema), {.depth = limits.schema_depth,
                                                        .nodes = limits.schema_nodes,
                                                        .max_repetition = limits.max_repetition});
    // Objects take what additionalProperties says and, where it says nothing, nothing more.
    return compile_schema(constraint.schema);
  }
  xgrammar::CompiledGrammar operator()(const RegexConstraint& constraint) {
    check_size(constraint.pattern.size(), "regex");
    check_regex_repetition(constraint.pattern, limits.max_repetition);
    return text.CompileRegex(constraint.pattern);
  }
  xgrammar::CompiledGrammar operator()(const ChoiceConstraint& constraint) {
    const std::string grammar = choice_grammar(constraint.choices);
    check_size(grammar.size(), "choice");
    return text.CompileGrammar(grammar);
  }
  xgrammar::CompiledGrammar operator()(const EbnfConstraint& constraint) {
    check_size(constraint.grammar.size(), "grammar");
    check_regex_repetition(constraint.grammar, limits.max_repetition);
    return text.CompileGrammar(constraint.grammar);
  }

  xgrammar::CompiledGrammar compile_schema(const std::string& schema) {
    // Without a bound, models that like white space never come to an end.
    constexpr int kMaxWhitespace = 32;
    return json.CompileJSONSchema(schema, /*any_whitespace=*/true, /*indent=*/std::nullopt,
                                  /*separators=*/std::nullopt, /*strict_mode=*/true,
                                  kMaxWhitespace);
  }

  void check_size(size_t bytes, const char* what) const {
    if (bytes <= limits.source_bytes) return;
    throw Error("{}: {} bytes, more than the {} allowed", what, bytes, limits.source_bytes);
  }

  GrammarLimits limits;
  std::vector<int> stops;
  xgrammar::GrammarCompiler text, json;  // one for each vocabulary
  std::mutex mutex;
  GrammarCache cache;  // under mutex
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int vocab_size,
                                 std::span<const TokenId> stop_tokens, const GrammarLimits& limits)
    : impl_(std::make_unique<Impl>(tokenizer, vocab_size, stop_tokens, limits)) {}

GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const TokenGrammar> GrammarCompiler::compile(const OutputConstraint& constraint) {
  const std::string key = cache_key(constraint);
  {
    const std::lock_guard lock(impl_->mutex);
    if (auto found = impl_->cache.find(key)) return found;
  }
  XGrammarWarnings warnings;
  try {
    xgrammar::CompiledGrammar compiled = std::visit(*impl_, constraint);
    for (const std::string& warning : warnings.messages()) {
      if (!tolerated(warning)) throw Error("this cannot be enforced: {}", warning);
    }
    const size_t bytes = compiled.MemorySizeBytes();
    auto grammar = std::make_shared<const XGrammarGrammar>(std::move(compiled), impl_->stops);
    const std::lock_guard lock(impl_->mutex);
    impl_->cache.add(key, grammar, bytes);
    return grammar;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::string message = error.what();
    while (!message.empty() && (message.back() == '\n' || message.back() == ' '))
      message.pop_back();
    throw Error("{}", message);
  }
}

}  // namespace vamp
