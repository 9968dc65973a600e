#include "text/output_parser.h"

#include <array>

#include "base/error.h"
#include "text/output_parsers.h"

namespace vamp {
namespace {

struct ReasoningFormat {
  const char* name;
  const char* begin;
  const char* end;
  bool always_open;     // the output begins within the reasoning, whatever the prompt says
  bool special_tokens;  // the markers are special tokens
};

constexpr std::array kReasoning = {
    ReasoningFormat{"deepseek_r1", "<think>", "</think>", true, false},
    ReasoningFormat{"deepseek_v3", "<think>", "</think>", false, false},
    ReasoningFormat{"glm45", "<think>", "</think>", false, false},
    ReasoningFormat{"mistral", "[THINK]", "[/THINK]", false, true},
    ReasoningFormat{"qwen3", "<think>", "</think>", false, false},
    ReasoningFormat{"seed_oss", "<seed:think>", "</seed:think>", false, false},
};

constexpr const char* kHarmony = "openai_gptoss";  // as reasoning parser
constexpr const char* kHarmonyTools = "openai";    // and as tool-call parser

struct ToolFormat {
  const char* name;
  std::unique_ptr<OutputParser> (*make)(const OutputParserOptions&);
  bool special_tokens;
};

constexpr std::array kTools = {
    ToolFormat{"deepseek_v3", make_deepseek_parser, false},
    ToolFormat{"deepseek_v31", make_deepseek_parser, false},
    ToolFormat{"hermes", make_hermes_parser, false},
    ToolFormat{"llama3_json", make_llama3_parser, true},
    ToolFormat{"mistral", make_mistral_parser, true},
    ToolFormat{"qwen3_coder", make_qwen3_xml_parser, false},
    ToolFormat{"qwen3_xml", make_qwen3_xml_parser, false},
};

template <typename Formats>
auto find_format(const Formats& formats, const std::string& name) {
  auto it = formats.begin();
  while (it != formats.end() && name != it->name) ++it;
  return it;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

class ContentParser final : public OutputParser {
 public:
  void push(std::string_view text, MessageDelta& out) override { out.content.append(text); }
  void finish(MessageDelta&) override {}
};

std::unique_ptr<OutputParser> make_tool_parser(const OutputParserOptions& options) {
  if (!options.named_tool.empty()) return make_named_call_parser(options);
  if (options.call_list) return make_call_list_parser(options);
  if (options.tool_call_parser.empty()) return make_content_parser();
  const auto format = find_format(kTools, options.tool_call_parser);
  if (format == kTools.end()) {
    throw Error("tool-call parser \"{}\" is not known; known: {}", options.tool_call_parser,
                joined(tool_call_parser_names()));
  }
  return format->make(options);
}

}  // namespace

std::unique_ptr<OutputParser> make_content_parser() {
  return std::make_unique<ContentParser>();
}

std::unique_ptr<OutputParser> make_output_parser(const OutputParserOptions& options) {
  if (writes_channels(options)) return make_harmony_parser(options);
  auto tools = make_tool_parser(options);
  if (options.reasoning_parser.empty()) return tools;
  const auto format = find_format(kReasoning, options.reasoning_parser);
  if (format == kReasoning.end()) {
    throw Error("reasoning parser \"{}\" is not known; known: {}", options.reasoning_parser,
                joined(reasoning_parser_names()));
  }
  return make_think_parser(format->begin, format->end,
                           format->always_open || options.prompt_opens_reasoning, std::move(tools));
}

bool needs_special_tokens(const OutputParserOptions& options) {
  if (writes_channels(options)) return true;
  const auto tools = find_format(kTools, options.tool_call_parser);
  const auto reasoning = find_format(kReasoning, options.reasoning_parser);
  return (tools != kTools.end() && tools->special_tokens) ||
         (reasoning != kReasoning.end() && reasoning->special_tokens);
}

std::optional<ReasoningMarkers> reasoning_markers(const OutputParserOptions& options) {
  const auto format = find_format(kReasoning, options.reasoning_parser);
  if (format == kReasoning.end() || writes_channels(options)) return std::nullopt;
  return ReasoningMarkers{format->begin, format->end,
                          format->always_open || options.prompt_opens_reasoning};
}

bool writes_channels(const OutputParserOptions& options) {
  return options.reasoning_parser == kHarmony || options.tool_call_parser == kHarmonyTools;
}

bool prompt_opens_reasoning(std::string_view prompt, const std::string& reasoning_parser) {
  const auto format = find_format(kReasoning, reasoning_parser);
  if (format == kReasoning.end()) return false;
  const size_t begin = prompt.rfind(format->begin);
  if (begin == std::string_view::npos) return false;
  // Only the template's own marker at the very end counts, not one that a message talks about.
  const std::string_view rest = prompt.substr(begin + std::string_view(format->begin).size());
  return rest.find_first_not_of(" \r\n\t") == std::string_view::npos;
}

std::vector<std::string> reasoning_parser_names() {
  std::vector<std::string> names;
  for (const auto& format : kReasoning) names.emplace_back(format.name);
  names.emplace_back(kHarmony);
  return names;
}

std::vector<std::string> tool_call_parser_names() {
  std::vector<std::string> names;
  for (const auto& format : kTools) names.emplace_back(format.name);
  names.emplace_back(kHarmonyTools);
  return names;
}

}  // namespace vamp
