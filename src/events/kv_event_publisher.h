// Publishes what the prefix cache comes to hold and loses, over ZMQ as vLLM does: a PUB socket of
// batches (topic, number, MessagePack), and a ROUTER socket that sends past batches again.
#pragma once

#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "base/bounded_queue.h"
#include "engine/engine.h"
#include "events/kv_events_config.h"

namespace vamp {

// Owns its sockets and the thread that uses them. The engine's thread numbers batches and queues
// them; it never waits: a batch that finds the queue full is lost, and its number with it, which is
// how subscribers learn of it. Must outlive the engine that it listens to.
class KvEventPublisher final : public EngineListener {
 public:
  // Throws Error for an endpoint that cannot be had.
  explicit KvEventPublisher(const KvEventsConfig& config);
  ~KvEventPublisher() override;

  // As they came to be: with the port that was found.
  const std::string& endpoint() const { return endpoint_; }
  bool bound() const { return bound_; }  // false: it connects to a collector there
  const std::string& replay_endpoint() const { return replay_endpoint_; }

  void on_kv_events(const std::vector<KvEvent>& events) override;

 private:
  struct Batch {
    uint64_t number = 0;
    double time = 0;
    std::vector<KvEvent> events;
  };

  void run();
  void send(const Batch& batch);
  bool answer_replay();
  bool send_again(zmq::message_t& client, uint64_t number, zmq::message_t& payload);

  const KvEventsConfig config_;
  const bool bound_;
  zmq::context_t context_{1};
  zmq::socket_t events_, replays_;  // the thread's, once it runs
  std::string endpoint_, replay_endpoint_;
  std::deque<std::pair<uint64_t, zmq::message_t>> past_;  // the thread's
  BoundedQueue<Batch> queue_;
  uint64_t next_ = 0, lost_ = 0;  // the engine's
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace vamp
