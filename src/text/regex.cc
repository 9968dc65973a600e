#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "base/error.h"
#include "text/utf8.h"

namespace vamp {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
// PCRE2's own default. It bounds what an expression with exponential backtracking can cost.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kJitStackBytes = 1 << 20;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct RegexScratch::Handles {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~Handles() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : handles_(std::make_unique<Handles>()) {
  handles_->data = pcre2_match_data_create(1, nullptr);
  handles_->context = pcre2_match_context_create(nullptr);
  handles_->stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
  if (!handles_->data || !handles_->context) throw std::bad_alloc();
  pcre2_set_match_limit(handles_->context, kMatchLimit);
  // Without a stack (no JIT on this machine) the interpreter matches.
  if (handles_->stack) pcre2_jit_stack_assign(handles_->context, nullptr, handles_->stack);
}

RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string pattern;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error("regular expression of {} bytes: the limit is {}", pattern.size(),
                kMaxPatternBytes);
  }
  if (!utf8::is_valid(pattern)) throw Error("regular expression is not valid UTF-8");
  code_->pattern = pattern;
  const std::string translated = translate_regex(pattern);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // In Ruby's syntax ^ and $ match at lines.
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, context.get());
  if (!code_->code) {
    throw Error("regular expression \"{}\" is invalid: {}", pattern, message_of(error));
  }
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // where it fails, the interpreter matches
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, size_t from, RegexScratch& scratch, Match& match) const {
  const RegexScratch::Handles& handles = *scratch.handles_;
  const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                from, PCRE2_NO_UTF_CHECK, handles.data, handles.context);
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) {
    throw Error("regular expression \"{}\" failed on a text of {} bytes: {}", code_->pattern,
                text.size(), message_of(count));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(handles.data);
  match = {bounds[0], bounds[1]};
  return true;
}

}  // namespace vamp
