// For tests: what a server leaves behind, in the log and elsewhere.
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

namespace vamp {

// What is logged meanwhile. Made before the server, so that no thread of its logs elsewhere.
class LogCapture {
 public:
  LogCapture() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_)); }
  ~LogCapture() { spdlog::set_default_logger(before_); }

  std::string text() { return sink_->text(); }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::string text() {
      const std::lock_guard lock(mutex_);
      return text_;
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      text_.append(message.payload.data(), message.payload.size());
      text_ += '\n';
    }
    void flush_() override {}
    std::string text_;
  };

  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
};

inline size_t open_descriptors() {
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace vamp
