// XGrammar's log. What it only warns of while it compiles is a constraint it does not enforce.
#pragma once

#include <string>
#include <vector>

namespace vamp {

// Collects this thread's warnings of XGrammar while it lives. Not to be nested.
class XGrammarWarnings {
 public:
  XGrammarWarnings();
  ~XGrammarWarnings();
  const std::vector<std::string>& messages() const { return messages_; }

 private:
  std::vector<std::string> messages_;
};

}  // namespace vamp
