// How deeply JSON text is nested, told before anybody takes it apart.
#pragma once

#include <string_view>

namespace vamp {

// Of JSON inside of strings: tool calls' arguments, whoever wrote them.
inline constexpr int kMostArgumentDepth = 128;

// Nested values are copied and written by recursion: too deep a nest would overflow the stack.
bool nested_deeper_than(std::string_view json, int limit);

}  // namespace vamp
