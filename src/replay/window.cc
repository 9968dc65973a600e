#include "replay/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace vamp {
namespace {

constexpr size_t kPaperWarmTurns = 128;

double parse_seconds(std::string_view text, std::string_view whole) {
  double seconds = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (fault != std::errc() || end != text.data() + text.size() || !(seconds >= 0)) {
    throw Error("--window {}: use all, paper, or seconds BEGIN:END", whole);
  }
  return seconds;
}

}  // namespace

WindowRule parse_window(std::string_view text) {
  if (text == "all") return {WindowRule::Kind::kAll, 0, 0};
  if (text == "paper") return {WindowRule::Kind::kPaper, 0, 0};
  const size_t colon = std::min(text.find(':'), text.size());
  const double begin = parse_seconds(text.substr(0, colon), text);
  const double end = parse_seconds(colon < text.size() ? text.substr(colon + 1) : "", text);
  if (end <= begin) throw Error("--window {}: the end must come after the begin", text);
  return {WindowRule::Kind::kTime, begin * kSecond, end * kSecond};
}

Window make_window(const WindowRule& rule, const RunRecord& run,
                   const std::vector<SessionTimes>& sessions, int slots) {
  const Window whole{0, run.duration, "all", ""};
  if (rule.kind == WindowRule::Kind::kAll) return whole;
  if (rule.kind == WindowRule::Kind::kTime) {
    return {std::min(rule.begin, run.duration), std::min(rule.end, run.duration), "time", ""};
  }
  std::vector<Micros> finished, started;
  for (const TurnRecord& turn : run.turns) {
    if (turn.answered()) finished.push_back(turn.stats.finished);
  }
  for (const SessionTimes& session : sessions) {
    if (session.started >= 0) started.push_back(session.started);
  }
  std::sort(finished.begin(), finished.end());
  std::sort(started.begin(), started.end());
  const size_t all =
      slots > 0 ? std::min(static_cast<size_t>(slots), sessions.size()) : sessions.size();
  if (finished.size() >= kPaperWarmTurns && started.size() >= all) {
    Window window{finished[kPaperWarmTurns - 1], run.duration, "paper", ""};
    for (const SessionTimes& session : sessions) {
      if (session.ended >= started[all - 1]) window.end = std::min(window.end, session.ended);
    }
    if (window.end > window.begin) return window;
  }
  Window fallback = whole;
  fallback.note = fmt::format(
      "the paper's interval is empty (turn {} had not finished before the first session ended); "
      "the whole run is counted",
      kPaperWarmTurns);
  return fallback;
}

}  // namespace vamp
