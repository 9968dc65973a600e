// For tests: a plain HTTP client that sends what it is told, however broken.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace vamp {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the chunks' marks
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

// One connection, blocking, with a time limit. Sends what it is told, however broken.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const timeval limit{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { close_now(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void close_now() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Without the four-way goodbye: the server is told by a reset.
  void reset() {
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close_now();
  }
  void end_sending() { shutdown(fd_, SHUT_WR); }
  bool readable() {
    pollfd ask{fd_, POLLIN, 0};
    return !buffer_.empty() || poll(&ask, 1, 0) > 0;
  }

  // False once the server has closed.
  bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t sent = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Up to and with `mark`; all there is when the server closes or 10 s pass.
  std::string read_until(std::string_view mark) {
    size_t end;
    while ((end = buffer_.find(mark)) == std::string::npos) {
      if (!receive()) return std::exchange(buffer_, {});
    }
    std::string out = buffer_.substr(0, end + mark.size());
    buffer_.erase(0, out.size());
    return out;
  }

  std::string read_bytes(size_t count) {
    while (buffer_.size() < count && receive()) {
    }
    std::string out = buffer_.substr(0, count);
    buffer_.erase(0, out.size());
    return out;
  }

  // True when the server has closed and there is nothing left.
  bool closed() { return buffer_.empty() && !receive(); }

  HttpReply read_head() {
    HttpReply reply;
    std::istringstream lines(read_until("\r\n\r\n"));
    std::string line;
    std::getline(lines, line);
    if (line.size() > 12) reply.status = std::atoi(line.c_str() + 9);
    while (std::getline(lines, line) && line.size() > 1) {
      const size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      if (colon != std::string::npos)
        reply.headers[name] = line.substr(colon + 2, line.size() - colon - 3);
    }
    return reply;
  }

  HttpReply read_reply() {
    HttpReply reply = read_head();
    if (reply.headers.contains("content-length")) {
      reply.body = read_bytes(std::stoul(reply.headers["content-length"]));
    } else if (reply.headers["transfer-encoding"] == "chunked") {
      while (true) {
        const size_t size = std::strtoul(read_until("\r\n").c_str(), nullptr, 16);
        reply.body += read_bytes(size);
        read_bytes(2);
        if (size == 0) break;
      }
    }
    return reply;
  }

 private:
  bool receive() {
    char chunk[65536];
    const ssize_t got = recv(fd_, chunk, sizeof chunk, 0);
    if (got > 0) buffer_.append(chunk, static_cast<size_t>(got));
    return got > 0;
  }

  int fd_ = -1;
  std::string buffer_;
};

inline std::string request_text(const std::string& method, const std::string& path,
                                const std::string& body = "", const std::string& headers = "") {
  return method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers +
         (body.empty() ? "" : "Content-Type: application/json\r\n") +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline HttpReply call(int port, const std::string& method, const std::string& path,
                      const std::string& body = "", const std::string& headers = "") {
  RawClient client(port);
  client.send(request_text(method, path, body, headers));
  return client.read_reply();
}
inline HttpReply get(int port, const std::string& path, const std::string& headers = "") {
  return call(port, "GET", path, "", headers);
}
inline HttpReply post(int port, const std::string& path, const nlohmann::json& body,
                      const std::string& headers = "") {
  return call(port, "POST", path, body.dump(), headers);
}

// The JSON of each "data: " line of an event stream, "[DONE]" as a string.
inline std::vector<nlohmann::json> events_of(const std::string& body) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    const std::string data = line.substr(6);
    events.push_back(data == "[DONE]" ? nlohmann::json(data) : nlohmann::json::parse(data));
  }
  return events;
}

// Until `condition` holds; false after ten seconds.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    usleep(5000);
  }
  return false;
}

}  // namespace vamp
