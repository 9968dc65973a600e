#include "text/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace vamp {
namespace {

Micros real_now() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What posix_spawn is to do in the child. Frees itself.
struct SpawnPlan {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  explicit SpawnPlan(int socket) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    throw Error("cannot open a socket to {}: {}", arguments[0], std::strerror(errno));
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  char locale[] = "LC_ALL=C.UTF-8";
  char* environment[] = {locale, nullptr};
  const SpawnPlan plan(sockets[1]);
  const int fault =
      posix_spawn(&pid_, argv[0], &plan.actions, &plan.attributes, argv.data(), environment);
  close(sockets[1]);
  socket_ = sockets[0];
  if (fault != 0) {
    close(socket_);
    throw Error("cannot start {}: {}", arguments[0], std::strerror(fault));
  }
}

ChildProcess::~ChildProcess() {
  end(false);
}

int ChildProcess::end(bool expected) {
  if (pid_ < 0) return 0;
  close(socket_);
  // A process on its way out closes its socket first: leave it the time to say what ended it.
  int status = 0;
  pid_t reaped = waitpid(pid_, &status, WNOHANG);
  for (int i = 0; i < 200 && expected && reaped == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    reaped = waitpid(pid_, &status, WNOHANG);
  }
  if (reaped == 0) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

ChildProcess::Outcome ChildProcess::transfer(char* data, size_t size, bool sending,
                                             Micros deadline) {
  while (size > 0) {
    const Micros left = deadline - real_now();
    if (left <= 0) return Outcome::kTimeout;
    pollfd waiting{socket_, static_cast<short>(sending ? POLLOUT : POLLIN), 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min(left / 1e3 + 1, 1e6)));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t moved = sending ? send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                                  : recv(socket_, data, size, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (moved <= 0) return Outcome::kEnded;
    data += moved;
    size -= static_cast<size_t>(moved);
  }
  return Outcome::kOk;
}

ChildProcess::Outcome ChildProcess::receive_until(Micros deadline, size_t max_bytes,
                                                  std::string& reply) {
  uint32_t size = 0;
  Outcome outcome = transfer(reinterpret_cast<char*>(&size), sizeof(size), false, deadline);
  if (outcome != Outcome::kOk) return outcome;
  if (size > max_bytes) return Outcome::kTooLong;
  reply.resize(size);
  return transfer(reply.data(), reply.size(), false, deadline);
}

ChildProcess::Outcome ChildProcess::exchange(std::string_view request, Micros timeout,
                                             size_t max_bytes, std::string& reply) {
  const Micros deadline = real_now() + timeout;
  std::string frame;
  const auto size = static_cast<uint32_t>(request.size());
  frame.assign(reinterpret_cast<const char*>(&size), sizeof(size)).append(request);
  const Outcome sent = transfer(frame.data(), frame.size(), true, deadline);
  return sent == Outcome::kOk ? receive_until(deadline, max_bytes, reply) : sent;
}

ChildProcess::Outcome ChildProcess::receive(Micros timeout, size_t max_bytes, std::string& reply) {
  return receive_until(real_now() + timeout, max_bytes, reply);
}

}  // namespace vamp
