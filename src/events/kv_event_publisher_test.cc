// The publisher over real sockets: what a subscriber reads, in both layouts, and what it asks for
// again.
#include "events/kv_event_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <zmq_addon.hpp>

#include "base/error.h"
#include "events/kv_event_codec.h"

#ifdef VAMP_SANITIZED
// libzmq is not built with the thread sanitizer, which then does not see what it does to be safe.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so";
}
#endif

namespace vamp {
namespace {

using nlohmann::json;
using Frames = std::vector<zmq::message_t>;

KvEvent stored(uint64_t key, std::optional<uint64_t> parent = {}) {
  KvEvent event;
  event.kind = KvEvent::Kind::kStored;
  event.keys = {{key, 1}, {key + 1, 1}};
  if (parent) event.parent = PrefixKey{*parent, 1};
  event.tokens = {1, 200, 300, 70000};
  return event;
}

KvEvent removed(uint64_t key, CacheTier tier) {
  KvEvent event;
  event.kind = KvEvent::Kind::kRemoved;
  event.tier = tier;
  event.keys = {{key, 1}};
  return event;
}

// Both sockets on free ports of this machine.
KvEventsConfig config() {
  KvEventsConfig config;
  config.enabled = true;
  config.endpoint = config.replay_endpoint = "tcp://127.0.0.1:*";
  config.topic = "kv@pod@model";
  return config;
}

class Subscriber {
 public:
  explicit Subscriber(const KvEventPublisher& publisher) {
    socket_.set(zmq::sockopt::rcvtimeo, 10'000);
    socket_.set(zmq::sockopt::subscribe, "kv@");
    socket_.connect(publisher.endpoint());
  }

  // The next batch; none after ten seconds.
  Frames next() {
    Frames frames;
    EXPECT_TRUE(zmq::recv_multipart(socket_, std::back_inserter(frames)));
    return frames;
  }
  // A subscription takes a moment to arrive: publishes until it is there.
  void wait_for(KvEventPublisher& publisher) {
    zmq::pollitem_t waiting[] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}};
    for (int i = 0; i < 1000; ++i) {
      publisher.on_kv_events({removed(1, CacheTier::kDevice)});
      if (zmq::poll(waiting, 1, std::chrono::milliseconds(10)) > 0) return;
    }
    FAIL() << "nothing comes";
  }

 private:
  zmq::context_t context_{1};
  zmq::socket_t socket_{context_, zmq::socket_type::sub};
};

uint64_t number_of(const zmq::message_t& frame) {
  uint64_t number = 0;
  for (size_t i = 0; i < frame.size(); ++i) number = number << 8 | frame.data<unsigned char>()[i];
  return number;
}

json batch_of(const zmq::message_t& frame) {
  return json::from_msgpack(frame.data<char>(), frame.data<char>() + frame.size());
}

TEST(KvEventCodec, WritesBothOfVllmsLayouts) {
  const std::vector<KvEvent> events = {stored(1ull << 63, 5), removed(9, CacheTier::kHost), {}};
  const auto decoded = [&](KvEventLayout layout) {
    return json::from_msgpack(encode_kv_events(events, 1.25, layout));
  };
  EXPECT_EQ(decoded(KvEventLayout::kMap), json::parse(R"([1.25, [
    {"type": "BlockStored", "block_hashes": [9223372036854775808, 9223372036854775809],
     "parent_block_hash": 5, "token_ids": [1, 200, 300, 70000], "block_size": 2, "lora_id": null,
     "medium": "GPU", "lora_name": null},
    {"type": "BlockRemoved", "block_hashes": [9], "medium": "CPU"},
    {"type": "AllBlocksCleared"}], 0])"));
  EXPECT_EQ(decoded(KvEventLayout::kArray), json::parse(R"([1.25, [
    ["BlockStored", [9223372036854775808, 9223372036854775809], 5, [1, 200, 300, 70000], 2, null,
     "GPU", null],
    ["BlockRemoved", [9], "CPU"],
    ["AllBlocksCleared"]], 0])"));
}

TEST(KvEventPublisher, SubscribersGetNumberedBatches) {
  KvEventPublisher publisher(config());
  Subscriber subscriber(publisher);
  subscriber.wait_for(publisher);
  publisher.on_kv_events({stored(77), removed(78, CacheTier::kDevice)});
  uint64_t last = number_of(subscriber.next()[1]);
  while (true) {
    const Frames frames = subscriber.next();
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].to_string(), "kv@pod@model");
    EXPECT_EQ(frames[1].size(), 8u);
    EXPECT_EQ(number_of(frames[1]), last + 1);
    last = number_of(frames[1]);
    const json batch = batch_of(frames[2]);
    if (batch[1][0]["type"] == "BlockRemoved") continue;  // of wait_for()
    EXPECT_GT(batch[0], 1.7e9);
    EXPECT_EQ(batch[1][0]["block_hashes"], json({77, 78}));
    EXPECT_TRUE(batch[1][0]["parent_block_hash"].is_null());
    EXPECT_EQ(batch[1][1]["type"], "BlockRemoved");
    EXPECT_EQ(batch[2], 0);
    break;
  }
}

// One request, then one answer after the other, the last one empty.
std::vector<std::pair<uint64_t, json>> ask_again(const KvEventPublisher& publisher, uint64_t from) {
  zmq::context_t context(1);
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::rcvtimeo, 10'000);
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(publisher.replay_endpoint());
  std::string number(8, '\0');
  for (size_t i = 0; i < 8; ++i) number[i] = static_cast<char>(from >> (56 - 8 * i));
  socket.send(zmq::message_t(), zmq::send_flags::sndmore);
  socket.send(zmq::buffer(number), zmq::send_flags::none);
  std::vector<std::pair<uint64_t, json>> batches;
  while (true) {
    Frames frames;
    if (!zmq::recv_multipart(socket, std::back_inserter(frames)) || frames.size() != 3) {
      ADD_FAILURE() << "an answer of " << frames.size() << " parts";
      break;
    }
    if (number_of(frames[1]) == ~uint64_t{0}) {
      EXPECT_EQ(frames[2].size(), 0u);
      break;
    }
    batches.emplace_back(number_of(frames[1]), batch_of(frames[2]));
  }
  return batches;
}

TEST(KvEventPublisher, PastBatchesAreSentAgain) {
  KvEventsConfig few = config();
  few.buffer_steps = 3;
  few.layout = KvEventLayout::kArray;
  KvEventPublisher publisher(few);
  EXPECT_TRUE(ask_again(publisher, 0).empty());
  for (uint64_t key = 10; key < 15; ++key) publisher.on_kv_events({stored(key)});
  // The queue may not be through yet: the last one says that it is.
  std::vector<std::pair<uint64_t, json>> batches;
  for (int i = 0; i < 100 && (batches.empty() || batches.back().first != 4); ++i)
    batches = ask_again(publisher, 0);
  ASSERT_EQ(batches.size(), 3u);  // those before are not kept
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(batches[i].first, 2 + i);
    EXPECT_EQ(batches[i].second[1][0][1][0], 12 + i);
  }
  EXPECT_EQ(ask_again(publisher, 4).size(), 1u);
  EXPECT_TRUE(ask_again(publisher, 5).empty());
}

TEST(KvEventPublisher, RequestsThatMakeNoSenseChangeNothing) {
  KvEventPublisher publisher(config());
  publisher.on_kv_events({stored(1)});
  zmq::context_t context(1);
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(publisher.replay_endpoint());
  for (const std::string text : {"", "1234567", "123456789", "a great deal more than a number"})
    socket.send(zmq::buffer(text), zmq::send_flags::none);
  for (int i = 0; i < 100 && ask_again(publisher, 0).empty(); ++i) {
  }
  EXPECT_EQ(ask_again(publisher, 0).size(), 1u);
}

TEST(KvEventPublisher, AnAddressThatIsTakenIsTold) {
  KvEventPublisher publisher(config());
  KvEventsConfig same = config();
  same.endpoint = "tcp://*:" + publisher.endpoint().substr(publisher.endpoint().rfind(':') + 1);
  try {
    KvEventPublisher second(same);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("--kv-events-config: endpoint tcp://*:"));
  }
}

// A full queue costs the batch and its number, never the engine's time.
TEST(KvEventPublisher, LostBatchesLeaveAGapInTheNumbers) {
  KvEventsConfig small = config();
  small.max_queue_size = 1;
  KvEventPublisher publisher(small);
  uint64_t sent = 0;
  for (; sent < 100'000; ++sent) publisher.on_kv_events({stored(sent)});
  std::vector<std::pair<uint64_t, json>> batches;
  for (int i = 0; i < 100; ++i) {
    publisher.on_kv_events({stored(sent++)});
    batches = ask_again(publisher, 0);
    if (!batches.empty() && batches.back().first + 1 == sent) break;
  }
  ASSERT_FALSE(batches.empty());
  EXPECT_EQ(batches.back().first + 1, sent);
  for (const auto& [number, batch] : batches)
    EXPECT_EQ(batch[1][0]["block_hashes"][0], number) << "a number that is another batch's";
}

}  // namespace
}  // namespace vamp
