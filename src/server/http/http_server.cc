#include "server/http/http_server.h"

#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>
#include <thread>
#include <unordered_set>

#include "base/error.h"
#include "server/http/connection.h"

namespace vamp {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(100);
// After a failed accept (out of descriptors, most likely): others may end meanwhile.
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

// An io thread with the connections that live on it.
struct IoThread {
  std::unordered_set<std::shared_ptr<Connection>> connections;
  asio::io_context context{1};  // its end is that of the coroutines, which know the connections
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::steady_timer timer{context};
  std::function<void()> at_tick;
  std::thread thread;

  void start() {
    tick();
    thread = std::thread([this] { run(); });
  }

  // Out of memory, most likely: it costs the one handler that it struck.
  void run() {
    for (bool done = false; !done;) {
      try {
        context.run();
        done = true;
      } catch (const std::exception& error) {
        spdlog::error("an io thread goes on after: {}", error.what());
      }
    }
  }

  void tick() {
    timer.expires_after(kTick);
    timer.async_wait([this](const error_code& error) {
      if (error) return;
      try {
        look_after_connections();
        if (at_tick) at_tick();
      } catch (const std::exception& fault) {
        spdlog::error("time limits are looked at a tick later: {}", fault.what());
      }
      tick();
    });
  }

  void look_after_connections() {
    const auto now = std::chrono::steady_clock::now();
    // A copy: a connection may end meanwhile.
    const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) connection->tick(now);
  }

  // Among the connections for as long as the coroutine that serves it, whatever ends that.
  struct Place {
    Place(IoThread& t, const std::shared_ptr<Connection>& c, std::atomic<int>& n)
        : thread(t), connection(c), total(n) {
      thread.connections.insert(connection);
      ++total;
    }
    ~Place() {
      connection->abort();  // others may hold it still
      thread.connections.erase(connection);
      --total;
    }
    IoThread& thread;
    const std::shared_ptr<Connection> connection;
    std::atomic<int>& total;
  };

  asio::awaitable<void> serve(std::shared_ptr<Connection> connection, std::atomic<int>& total,
                              bool refused) {
    const Place place(*this, connection, total);
    if (refused) {
      co_await connection->run_refused();
    } else {
      co_await connection->run();
    }
  }
};

// A client that is gone without a word (a cut cable, a host that lost power): what we send must be
// acknowledged within the time, and where we send nothing, the kernel asks.
void notice_vanished_client(int socket, double seconds) {
  constexpr int kProbes = 4;
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  const int whole = std::clamp(static_cast<int>(seconds), kProbes, 3600);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, whole);
  set(IPPROTO_TCP, TCP_KEEPINTVL, whole / kProbes);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, whole * 1000);
}

std::unique_ptr<asio::ssl::context> make_tls(const HttpOptions& options) {
  if (options.tls_certificate.empty() && options.tls_key.empty()) return nullptr;
  if (options.tls_certificate.empty() || options.tls_key.empty())
    throw Error("TLS needs both --ssl-certfile and --ssl-keyfile");
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  context->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  context->use_certificate_chain_file(options.tls_certificate, error);
  if (error) throw Error("--ssl-certfile {}: {}", options.tls_certificate, error.message());
  context->use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
  if (error) throw Error("--ssl-keyfile {}: {}", options.tls_key, error.message());
  return context;
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& o, HttpHandler& h)
      : options(o), handler(h), tls(make_tls(o)), acceptor(main_thread().context) {
    listen();
    main_thread().at_tick = [this] { keep_accepting(); };
    keep_accepting();
    for (auto& thread : threads) thread->start();
  }

  ~Impl() { stop(); }

  void stop() {
    if (!threads.front()->thread.joinable()) return;
    on_each([this](IoThread& thread) {
      if (&thread == threads.front().get()) close_acceptor();
      for (const auto& connection : thread.connections) connection->abort();
    });
    // Coroutines notice by their next completion; what still hangs then dies with its context.
    for (auto& thread : threads) {
      asio::post(thread->context, [&thread] { thread->context.stop(); });
    }
    for (auto& thread : threads) thread->thread.join();
    for (auto& thread : threads) thread->connections.clear();
  }

  IoThread& main_thread() {
    while (static_cast<int>(threads.size()) < std::max(1, options.threads))
      threads.push_back(std::make_unique<IoThread>());
    return *threads.front();
  }

  void listen() {
    error_code error;
    const auto fail = [&](const char* what) {
      if (error)
        throw Error("cannot {} {}:{}: {}; choose another --host or --port", what, options.host,
                    options.port, error.message());
    };
    const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
    const auto address = asio::ip::make_address(host, error);
    if (error) throw Error("--host {}: not an IP address", options.host);
    const tcp::endpoint endpoint(address, static_cast<unsigned short>(options.port));
    acceptor.open(endpoint.protocol(), error);
    fail("open");
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    acceptor.bind(endpoint, error);
    fail("bind to");
    acceptor.listen(asio::socket_base::max_listen_connections, error);
    fail("listen on");
    port = acceptor.local_endpoint().port();
  }

  // A completion that finds no memory takes its coroutine with it: there must be another one.
  void keep_accepting() {
    if (!accepting && acceptor.is_open())
      asio::co_spawn(main_thread().context, accept(), asio::detached);
  }

  asio::awaitable<void> accept() {
    const auto ends = [](bool* flag) { *flag = false; };
    const std::unique_ptr<bool, decltype(ends)> alive(&accepting);
    accepting = true;
    asio::steady_timer pause(main_thread().context);
    for (size_t next = 0; acceptor.is_open(); ++next) {
      IoThread& thread = *threads[next % threads.size()];
      error_code error;
      try {
        tcp::socket socket = co_await acceptor.async_accept(
            thread.context, asio::redirect_error(asio::use_awaitable, error));
        if (!error) take(thread, std::move(socket));
      } catch (const std::bad_alloc&) {
        error = asio::error::no_memory;
      }
      if (!error) continue;
      if (!acceptor.is_open()) co_return;
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }

  void take(IoThread& thread, tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.non_blocking(true, ignored);
    notice_vanished_client(socket.native_handle(), options.write_seconds);
    const bool refused = total >= options.max_connections;
    auto connection = std::make_shared<Connection>(std::move(socket), refused ? nullptr : tls.get(),
                                                   options, handler);
    asio::dispatch(thread.context, [this, &thread, refused, connection = std::move(connection)] {
      asio::co_spawn(thread.context, thread.serve(connection, total, refused), asio::detached);
    });
  }

  void close_acceptor() {
    error_code ignored;
    acceptor.close(ignored);
  }

  // Runs `work` on every io thread, and waits.
  template <typename Work>
  void on_each(Work work) {
    std::vector<std::future<void>> done;
    for (auto& thread : threads) {
      auto task = std::make_shared<std::packaged_task<void()>>([&] { work(*thread); });
      done.push_back(task->get_future());
      asio::post(thread->context, [task] { (*task)(); });
    }
    for (auto& future : done) future.wait();
  }

  const HttpOptions options;
  HttpHandler& handler;
  std::unique_ptr<asio::ssl::context> tls;
  std::atomic<int> total = 0;
  bool accepting = false;  // the first thread's own
  std::vector<std::unique_ptr<IoThread>> threads;
  tcp::acceptor acceptor;
  int port = 0;
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandler& handler)
    : impl_(std::make_unique<Impl>(options, handler)) {}
HttpServer::~HttpServer() = default;

void HttpServer::stop() {
  impl_->stop();
}

int HttpServer::port() const {
  return impl_->port;
}
int HttpServer::threads() const {
  return static_cast<int>(impl_->threads.size());
}
asio::io_context& HttpServer::context(int thread) {
  return impl_->threads[static_cast<size_t>(thread)]->context;
}
int HttpServer::connections() const {
  return impl_->total;
}

int HttpServer::busy_connections() const {
  std::atomic<int> busy = 0;
  impl_->on_each([&](IoThread& thread) {
    for (const auto& connection : thread.connections) busy += connection->busy();
  });
  return busy;
}

void HttpServer::drain() {
  impl_->on_each([this](IoThread& thread) {
    if (&thread == impl_->threads.front().get()) impl_->close_acceptor();
    for (const auto& connection : thread.connections) connection->drain();
  });
}

}  // namespace vamp
