// Many streams at once on one io thread. The server runs here with simulated steps of a fixed time
// under the real clock; the client is a process of its own. The last line is JSON.
//
//   fraction_of_ideal    tokens received over tokens that the steps' pace would give
//   bytes_per_stream     resident memory that the open streams added, over their number
//   ttft_p99_overhead_ms the client's 99th percentile of time to first token less the engine's
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <mutex>

#include "base/file.h"
#include "core/make_policy.h"
#include "server/server.h"
#include "sim/sim_executor.h"

namespace vamp {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct BenchOptions {
  int streams = 1000;
  double step_ms = 20, seconds = 10;
  int io_threads = 1;
  std::string golden = "tests/golden";
};

struct ClientResult {
  double tokens_per_s = 0, ttft_p50_ms = 0, ttft_p99_ms = 0, processor_s = 0;
  int failed = 0;
};

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// --- the client, in its own process -------------------------------------------------------------

struct Stream {
  int fd = -1;
  SteadyClock::time_point sent{};
  double ttft_ms = -1;
  int64_t tokens = 0;
  size_t matched = 0;  // of "data: {"
};

class LoadClient {
 public:
  LoadClient(int port, const BenchOptions& options) : port_(port), options_(options) {}

  ClientResult run() {
    epoll_ = epoll_create1(0);
    streams_.resize(static_cast<size_t>(options_.streams));
    // Spread over a second: a thundering herd is another test.
    const auto start = SteadyClock::now();
    for (size_t i = 0; i < streams_.size(); ++i) {
      const auto due =
          start + std::chrono::duration_cast<SteadyClock::duration>(
                      std::chrono::duration<double>(double(i) / double(streams_.size())));
      while (SteadyClock::now() < due) poll(1);
      open(streams_[i], i);
    }
    const auto settled = SteadyClock::now() + std::chrono::seconds(1);
    while (SteadyClock::now() < settled) poll(10);
    const int64_t before = tokens();
    const auto begin = SteadyClock::now();
    const auto end = begin + std::chrono::duration_cast<SteadyClock::duration>(
                                 std::chrono::duration<double>(options_.seconds));
    while (SteadyClock::now() < end) poll(10);
    const std::chrono::duration<double> spent = SteadyClock::now() - begin;
    ClientResult result;
    result.tokens_per_s = double(tokens() - before) / spent.count();
    std::vector<double> ttft;
    for (const Stream& stream : streams_) {
      if (stream.ttft_ms >= 0) ttft.push_back(stream.ttft_ms);
      result.failed += stream.ttft_ms < 0 || stream.fd < 0;
    }
    result.ttft_p50_ms = percentile(ttft, 0.5);
    result.ttft_p99_ms = percentile(ttft, 0.99);
    result.processor_s = processor_seconds();
    return result;
  }

 private:
  void open(Stream& stream, size_t index) {
    stream.fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(stream.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw Error("connect: {}", strerror(errno));
    }
    const std::string body = fmt::format(
        R"({{"prompt":[{},7,8,9,10],"max_tokens":100000,"ignore_eos":true,"stream":true,"temperature":0}})",
        index % 500);
    const std::string text = fmt::format(
        "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\n\r\n{}",
        body.size(), body);
    stream.sent = SteadyClock::now();
    if (write(stream.fd, text.data(), text.size()) < 0) throw Error("write: {}", strerror(errno));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &stream;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, stream.fd, &event);
  }

  void poll(int milliseconds) {
    epoll_event events[256];
    const int ready = epoll_wait(epoll_, events, 256, milliseconds);
    for (int i = 0; i < ready; ++i) read(*static_cast<Stream*>(events[i].data.ptr));
  }

  void read(Stream& stream) {
    static char chunk[1 << 16];
    const ssize_t got = recv(stream.fd, chunk, sizeof chunk, MSG_DONTWAIT);
    if (got < 0) return;
    if (got == 0) {
      close(stream.fd);
      stream.fd = -1;
      return;
    }
    constexpr std::string_view kMark = "data: {";
    for (const char c : std::string_view(chunk, static_cast<size_t>(got))) {
      stream.matched = c == kMark[stream.matched] ? stream.matched + 1 : (c == kMark[0] ? 1 : 0);
      if (stream.matched < kMark.size()) continue;
      stream.matched = 0;
      ++stream.tokens;
    }
    if (stream.tokens > 0 && stream.ttft_ms < 0) {
      stream.ttft_ms =
          std::chrono::duration<double, std::milli>(SteadyClock::now() - stream.sent).count();
    }
  }

  int64_t tokens() const {
    int64_t sum = 0;
    for (const Stream& stream : streams_) sum += stream.tokens;
    return sum;
  }

  const int port_;
  const BenchOptions options_;
  int epoll_ = -1;
  std::vector<Stream> streams_;
};

// --- the server, in this one --------------------------------------------------------------------

// The engine's own times to first token.
class FirstTokens final : public EngineListener {
 public:
  void on_finished(const RequestEvent&, const RequestStats& stats) override {
    const std::lock_guard lock(mutex_);
    if (stats.first_token > 0) ttft_ms_.push_back((stats.first_token - stats.arrival) / 1e3);
  }
  std::vector<double> ttft_ms() {
    const std::lock_guard lock(mutex_);
    return ttft_ms_;
  }

 private:
  std::mutex mutex_;
  std::vector<double> ttft_ms_;
};

size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

ServingParts load(const BenchOptions& options) {
  const ModelConfig config = load_model_config(options.golden + "/qwen3_moe");
  ServingParts out;
  Tokenizer tokenizer(read_text_file(options.golden + "/tokenizers/gpt2/tokenizer.json"), "gpt2");
  MemoryLayoutOptions memory;
  memory.device_bytes = size_t{8} * kGiB;
  EngineParts& engine = out.engine;
  engine.own_layout = std::make_unique<MemoryLayout>(make_memory_layout(config, memory));
  engine.layout = engine.own_layout.get();
  engine.clock = std::make_unique<RealClock>();
  SimConfig sim;
  sim.machine = machine_profile("h200");
  sim.fixed_step = options.step_ms * 1e3;
  engine.executor = std::make_unique<SimExecutor>(config, *engine.layout, sim, *engine.clock);
  engine.policy = make_policy("static", {}, *engine.layout);
  engine.config.scheduler.max_num_seqs = options.streams;
  engine.config.scheduler.max_num_batched_tokens = 16384;
  engine.config.inbox_capacity = 1 << 16;
  out.info.max_model_len = 200'000;
  out.info.vocab_size = config.vocab_size;
  out.info.policy = "static";
  out.text = std::make_unique<TextService>(std::move(tokenizer), "", 2);
  return out;
}

ClientResult run_client(int port, const BenchOptions& options) {
  return LoadClient(port, options).run();
}

}  // namespace
}  // namespace vamp

int main(int argc, char** argv) {
  using namespace vamp;
  BenchOptions options;
  CLI::App app("Streams of a token per step on one io thread");
  app.add_option("--streams", options.streams, "at once");
  app.add_option("--step-ms", options.step_ms, "time of a step");
  app.add_option("--seconds", options.seconds, "measured");
  app.add_option("--io-threads", options.io_threads, "of the server");
  app.add_option("--golden", options.golden, "tests/golden of the repository");
  CLI11_PARSE(app, argc, argv);

  int to_client[2], from_client[2];
  if (pipe(to_client) != 0 || pipe(from_client) != 0) return 1;
  const pid_t child = fork();  // before there are threads
  if (child == 0) {
    close(to_client[1]);  // so that its end is seen
    int port = 0;
    if (read(to_client[0], &port, sizeof port) != sizeof port) return 1;
    const ClientResult result = run_client(port, options);
    if (write(from_client[1], &result, sizeof result) != sizeof result) return 1;
    char done;
    return read(to_client[0], &done, 1) >= 0 ? 0 : 1;
  }

  FirstTokens first_tokens;
  ServerOptions served;
  served.http.port = 0;
  served.http.threads = options.io_threads;
  served.served_names = {"bench"};
  served.max_waiting_requests = 0;
  auto server = std::make_unique<Server>(served, [&] {
    ServingParts model = load(options);
    model.listeners = {&first_tokens};
    return model;
  });
  if (!server->wait_until_loaded()) {
    std::cerr << server->service().unready_reason() << "\n";
    return 1;
  }
  const size_t before = resident_bytes();
  const double processor_before = processor_seconds();
  const int port = server->port();
  if (write(to_client[1], &port, sizeof port) != sizeof port) return 1;
  ClientResult client;
  if (read(from_client[0], &client, sizeof client) != sizeof client) return 1;
  const size_t after = resident_bytes();
  const double processor = processor_seconds() - processor_before;
  close(to_client[1]);  // the client goes, and with it its streams
  int status = 0;
  waitpid(child, &status, 0);
  for (int i = 0; i < 100 && server->service().bridge().requests() > 0; ++i) usleep(50'000);
  usleep(300'000);
  const double engine_p50 = percentile(first_tokens.ttft_ms(), 0.5);
  const double engine_p99 = percentile(first_tokens.ttft_ms(), 0.99);

  const double ideal = options.streams * 1e3 / options.step_ms;
  std::cout << fmt::format(
      "{} streams, a token per {:g} ms, {} io thread(s): {:.0f} of {:.0f} tokens/s; {} failed\n"
      "TTFT p50/p99: client {:.1f}/{:.1f} ms, engine {:.1f}/{:.1f} ms; processor time: server "
      "{:.1f} s, "
      "client {:.1f} s\n",
      options.streams, options.step_ms, options.io_threads, client.tokens_per_s, ideal,
      client.failed, client.ttft_p50_ms, client.ttft_p99_ms, engine_p50, engine_p99, processor,
      client.processor_s);
  std::cout
      << fmt::format(
             R"({{"streams":{},"step_ms":{:g},"fraction_of_ideal":{:.4f},"bytes_per_stream":{},"ttft_p99_overhead_ms":{:.2f},"failed":{}}})",
             options.streams, options.step_ms, client.tokens_per_s / ideal,
             (after - std::min(after, before)) / static_cast<size_t>(options.streams),
             client.ttft_p99_ms - engine_p99, client.failed)
      << "\n";
  return 0;
}
