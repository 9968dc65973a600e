// Errors. Three kinds, and only three:
//   - an expected outcome is a return value (std::optional, a status enum);
//   - a fault of the outside world (file, config, flag, socket, driver) throws Error, whose message
//     says what was being done, with what, and what to do about it;
//   - a broken invariant of our own hits VAMP_CHECK, which stays in release builds.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace vamp {

// A fault of the outside world. The message is one line, made for the user.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  template <typename... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
    requires(sizeof...(Args) > 0)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A broken invariant. Derives from logic_error so that a server can fail one engine and say why
// rather than die with the process.
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);

}  // namespace vamp

// VAMP_CHECK(condition) or VAMP_CHECK(condition, "format {}", value).
#define VAMP_CHECK(condition, ...)                                          \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::vamp::check_failed(#condition, __FILE__, __LINE__,                  \
                           ::vamp::detail::check_message(__VA_ARGS__));     \
  } while (false)

namespace vamp::detail {
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace vamp::detail
