#include "grammar/xgrammar_log.h"

#include <spdlog/spdlog.h>

#include <stdexcept>

namespace vamp {
namespace {
thread_local std::vector<std::string>* collecting = nullptr;
}

XGrammarWarnings::XGrammarWarnings() {
  collecting = &messages_;
}
XGrammarWarnings::~XGrammarWarnings() {
  collecting = nullptr;
}

void collect_xgrammar_message(const std::string& message) {
  if (collecting != nullptr) {
    collecting->push_back(message);
  } else {
    spdlog::warn("XGrammar: {}", message);
  }
}

}  // namespace vamp

// Declared by XGrammar's headers for whoever takes its log (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*line*/,
                               const std::string& message);
void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level,
                    const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning) vamp::collect_xgrammar_message(message);
}

}  // namespace xgrammar
