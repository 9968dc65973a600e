// What the output parsers' tests share: messages put together from deltas as a client does.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "text/output_parser.h"

namespace vamp::test {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << call.name << call.arguments;
}

struct Message {
  std::string reasoning, content;
  std::vector<Call> calls;
  bool operator==(const Message&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Message& message) {
  out << "reasoning: " << message.reasoning << "\ncontent: " << message.content;
  for (const Call& call : message.calls) out << "\ncall: " << call;
  return out;
}

// Puts deltas together as a client does, and holds them to what a client relies on.
inline void add(const MessageDelta& delta, Message& message) {
  message.reasoning += delta.reasoning;
  message.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto index = static_cast<size_t>(call.index);
    ASSERT_EQ(index == message.calls.size(), !call.id.empty()) << "id comes with the first delta";
    if (!call.id.empty()) message.calls.push_back({call.name, ""});
    ASSERT_EQ(index + 1, message.calls.size()) << "deltas go to the last call";
    message.calls.back().arguments += call.arguments;
  }
}

inline Message parse(const OutputParserOptions& options, const std::vector<std::string>& pieces) {
  const auto parser = make_output_parser(options);
  Message message;
  for (const std::string& piece : pieces) {
    MessageDelta delta;
    parser->push(piece, delta);
    add(delta, message);
  }
  MessageDelta last;
  parser->finish(last);
  add(last, message);
  return message;
}

// The same message whether the text comes whole, byte by byte, or in random pieces.
inline Message parse_all_ways(const OutputParserOptions& options, const std::string& text) {
  const Message whole = parse(options, {text});
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(parse(options, bytes), whole) << text;
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random.below(12);
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    EXPECT_EQ(parse(options, pieces), whole) << text;
  }
  return whole;
}

inline OutputParserOptions tools(const std::string& parser) {
  return {.tool_call_parser = parser};
}
inline OutputParserOptions reasoning(const std::string& parser, bool open = false) {
  return {.reasoning_parser = parser, .prompt_opens_reasoning = open};
}

}  // namespace vamp::test
