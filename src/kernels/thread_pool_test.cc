#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace vamp::cpu {
namespace {

TEST(ThreadPoolTest, RunsEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int count : {0, 1, 2, 7, 100, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      pool.parallel_for(count, [&](int i, int) { ++runs[static_cast<size_t>(i)]; });
      for (const auto& r : runs) ASSERT_EQ(r.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, ManyShortLoopsOneAfterAnother) {
  ThreadPool pool(4);
  long total = 0;
  for (int loop = 0; loop < 3000; ++loop) {
    std::vector<int> out(8);
    pool.parallel_for(8, [&](int i, int) { out[static_cast<size_t>(i)] = loop + i; });
    for (int i = 0; i < 8; ++i) total += out[static_cast<size_t>(i)] - loop - i;
  }
  EXPECT_EQ(total, 0);
}

// Workers that have gone to sleep come back.
TEST(ThreadPoolTest, LoopsAfterAPause) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> sum = 0;
    pool.parallel_for(64, [&](int i, int) { sum += i; });
    ASSERT_EQ(sum.load(), 64 * 63 / 2);
  }
}

TEST(ThreadPoolTest, WorkerNumbersAreDistinctAtAnyTime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> clash = false;
  pool.parallel_for(400, [&](int, int worker) {
    if (busy[static_cast<size_t>(worker)].fetch_add(1) != 0) clash = true;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    busy[static_cast<size_t>(worker)].fetch_sub(1);
  });
  EXPECT_FALSE(clash.load());
}

}  // namespace
}  // namespace vamp::cpu
