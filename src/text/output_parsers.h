// The parsers behind make_output_parser.
#pragma once

#include <memory>

#include "text/output_parser.h"

namespace vamp {

std::unique_ptr<OutputParser> make_content_parser();

// <tool_call>{"name": …, "arguments": …}</tool_call>, any number (Hermes, Qwen).
std::unique_ptr<OutputParser> make_hermes_parser(const OutputParserOptions& options);
// {"name": …, "parameters": …} as the whole output, several divided by ";" (Llama 3).
std::unique_ptr<OutputParser> make_llama3_parser(const OutputParserOptions& options);
// [TOOL_CALLS][{"name": …, "arguments": …}, …], or [TOOL_CALLS]name[ARGS]{…} for each (Mistral).
std::unique_ptr<OutputParser> make_mistral_parser(const OutputParserOptions& options);
// DeepSeek V3 and V3.1: calls between markers of their own, arguments as JSON.
std::unique_ptr<OutputParser> make_deepseek_parser(const OutputParserOptions& options);
// <tool_call><function=name><parameter=key>value</parameter></function></tool_call> (Qwen3-Coder).
std::unique_ptr<OutputParser> make_qwen3_xml_parser(const OutputParserOptions& options);
// gpt-oss: channels and recipients; reasoning, content and calls in one.
std::unique_ptr<OutputParser> make_harmony_parser(const OutputParserOptions& options);

// The whole output is the arguments of the tool named by `options`.
std::unique_ptr<OutputParser> make_named_call_parser(const OutputParserOptions& options);
// [{"name": …, "parameters": …}, …] as the whole output.
std::unique_ptr<OutputParser> make_call_list_parser(const OutputParserOptions& options);

// Reasoning between two markers; what follows goes to `rest`. With `open`, the output begins within
// the reasoning.
std::unique_ptr<OutputParser> make_think_parser(std::string begin, std::string end, bool open,
                                                std::unique_ptr<OutputParser> rest);

}  // namespace vamp
