// Each allocation of a request failing in turn, on each thread that works for it: at most that
// request is lost, or, on the engine's thread, the engine with the reason.
#ifdef __has_feature
#define VAMP_THREAD_SANITIZER __has_feature(thread_sanitizer)
#endif
#if !VAMP_THREAD_SANITIZER  // it has an operator new of its own

#include <gmock/gmock.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <cstdlib>
#include <future>
#include <new>

#include "server/test_support.h"

namespace {
// Allocations of this thread until one of them fails, once; negative: none does.
// Smaller ones than `smallest_that_fails` are not counted: JSON's constructors would leak, and its
// destructor, which takes some memory too, ends the process.
thread_local long allocations_left = -1;
std::atomic<size_t> smallest_that_fails = 0;

void* allocate(size_t size) noexcept {
  if (allocations_left >= 0 && size >= smallest_that_fails && allocations_left-- == 0)
    return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}
}  // namespace

// Inlined, GCC would take free() for the wrong way to give back what operator new gave.
#define NOT_INLINED [[gnu::noinline]]
NOT_INLINED void* operator new(size_t size) {
  if (void* memory = allocate(size)) return memory;
  throw std::bad_alloc();
}
NOT_INLINED void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
NOT_INLINED void operator delete(void* memory) noexcept {
  std::free(memory);
}
NOT_INLINED void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
NOT_INLINED void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

#undef NOT_INLINED

namespace vamp {
namespace {

namespace asio = boost::asio;
using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;

class OutOfMemory : public testing::Test {
 protected:
  static constexpr long kMost = 4000;  // allocations of a request, by far
  static constexpr size_t kNotOfJson = 600;

  ~OutOfMemory() override { smallest_that_fails = 0; }

  ServerOptions one_text_thread() {
    ServerOptions options;
    options.text_threads = 1;
    return options;
  }

  // On the io thread: what it may allocate from now on. Returns what was left.
  static long limit_io(TestServer& server, long allocations) {
    std::promise<long> left;
    asio::post(server.server().http().context(0), [&] {
      const long before = std::exchange(allocations_left, allocations);
      left.set_value(before);
    });
    return left.get_future().get();
  }

  // The same of the text thread.
  static long limit_text(TestServer& server, long allocations) {
    TextService& text = server.server().service().text();
    const std::function<long()> swap = [allocations] {
      return std::exchange(allocations_left, allocations);
    };
    return asio::co_spawn(server.server().http().context(0), text.run(swap), asio::use_future)
        .get();
  }

  // An answer, a fault that is told, or a connection that ends.
  static void expect_end(RawClient& client, bool stream) {
    const std::string answer = client.read_until("never said");
    if (answer.empty()) return;
    const int status = std::atoi(answer.c_str() + 9);
    EXPECT_THAT(status, AnyOf(200, 500)) << answer;
    if (status == 500) {
      EXPECT_THAT(answer, HasSubstr("out of memory"));
    } else if (stream && answer.ends_with("\r\n0\r\n\r\n")) {
      EXPECT_THAT(answer, HasSubstr("[DONE]"));
    }
  }

  // Lets each allocation of a request fail in turn, on the thread that `limit` limits.
  template <typename Limit>
  void fail_each(Limit limit, bool stream) {
    TestServer server("Hello", one_text_thread());
    json body = {{"stream", stream}};
    body["prompt"] = std::string(900, 'y');
    const auto send = [&](RawClient& client) {
      client.send(request_text("POST", "/v1/completions", body.dump(), "Connection: close\r\n"));
    };
    const auto nothing_left = [&] {
      return server.server().service().bridge().requests() == 0 &&
             server.server().http().connections() == 0;
    };
    EXPECT_EQ(post(server.port(), "/v1/completions", body).status, 200);
    long struck = 0;
    for (long n = 0; n < kMost; ++n) {
      limit(server, n);
      {
        RawClient client(server.port());
        send(client);
        expect_end(client, stream);
        ASSERT_TRUE(eventually(nothing_left)) << "allocation " << n;
      }
      if (limit(server, -1) >= 0) break;  // none failed
      ++struck;
      ASSERT_EQ(post(server.port(), "/v1/completions", body).status, 200) << "allocation " << n;
    }
    EXPECT_GT(struck, 0);
    EXPECT_LT(struck, kMost);
    EXPECT_EQ(get(server.port(), "/health").status, 200);
  }
};

TEST_F(OutOfMemory, OnTheIoThreadCostsOneRequest) {
  smallest_that_fails = kNotOfJson;
  fail_each(limit_io, /*stream=*/false);
}

TEST_F(OutOfMemory, OnTheIoThreadCostsOneStream) {
  fail_each(limit_io, /*stream=*/true);
}

TEST_F(OutOfMemory, OnTheTextThreadCostsOneRequest) {
  smallest_that_fails = kNotOfJson;
  fail_each(limit_text, /*stream=*/false);
}

// Wherever it strikes the engine's thread, the request ends, and so does the thread.
TEST_F(OutOfMemory, OnTheEnginesThreadIsItsEnd) {
  for (long n = 0; n < 60; n += 4) {
    TestServer server("Hello", one_text_thread());
    server.controls().step_time = 1000;
    json body = {{"prompt", "Hi"}, {"stream", true}};
    body["ignore_eos"] = true;
    body["max_tokens"] = 900;
    RawClient client(server.port());
    client.send(request_text("POST", "/v1/completions", body.dump()));
    client.read_until("data: ");
    std::atomic<bool> armed = false;
    server.controls().before_step([n, &armed] {
      if (!armed.exchange(true)) allocations_left = n;
    });
    EXPECT_THAT(client.read_until("\r\n0\r\n\r\n"), HasSubstr("out of memory")) << n;
    const HttpReply health = get(server.port(), "/health");
    EXPECT_EQ(health.status, 503);
    EXPECT_THAT(health.body, HasSubstr("out of memory"));
  }
}

}  // namespace
}  // namespace vamp

#endif
