#include "events/kv_event_publisher.h"

#include <spdlog/spdlog.h>

#include <bit>
#include <chrono>
#include <zmq_addon.hpp>

#include "base/error.h"
#include "events/kv_event_codec.h"

namespace vamp {
namespace {

// How long a request for past batches may wait while there is nothing new.
constexpr auto kPoll = std::chrono::milliseconds(100);
constexpr int64_t kMaxRequestBytes = 64;  // a number is 8
constexpr int kMaxRequests = 16;          // answered before events that wait go out
constexpr uint64_t kEndOfReplay = ~uint64_t{0};

zmq::message_t big_endian(uint64_t number) {
  zmq::message_t frame(sizeof number);
  for (size_t i = 0; i < sizeof number; ++i)
    frame.data<unsigned char>()[i] = static_cast<unsigned char>(number >> (56 - 8 * i));
  return frame;
}

uint64_t from_big_endian(const zmq::message_t& frame) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof number; ++i) number = number << 8 | frame.data<unsigned char>()[i];
  return number;
}

// vLLM's rule: a wildcard or a path is ours to bind, a host is a collector's to connect to.
bool is_ours(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://");
}

std::string open(zmq::socket_t& socket, const char* field, const std::string& endpoint, bool bind) {
  try {
    bind ? socket.bind(endpoint) : socket.connect(endpoint);
    return socket.get(zmq::sockopt::last_endpoint);
  } catch (const zmq::error_t& error) {
    throw Error("--kv-events-config: {} {}: {}; give another address", field, endpoint,
                error.what());
  }
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

KvEventPublisher::KvEventPublisher(const KvEventsConfig& config)
    : config_(config),
      bound_(is_ours(config.endpoint)),
      queue_(static_cast<size_t>(config.max_queue_size)) {
  events_ = zmq::socket_t(context_, zmq::socket_type::pub);
  events_.set(zmq::sockopt::sndhwm, config.hwm);
  events_.set(zmq::sockopt::linger, 0);
  endpoint_ = open(events_, "endpoint", config.endpoint, bound_);
  if (!config.replay_endpoint.empty()) {
    replays_ = zmq::socket_t(context_, zmq::socket_type::router);
    replays_.set(zmq::sockopt::linger, 0);
    replays_.set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
    // A client that asks and does not read is given up rather than waited for.
    replays_.set(zmq::sockopt::router_mandatory, true);
    replays_.set(zmq::sockopt::sndhwm, config.buffer_steps + 1);
    replay_endpoint_ = open(replays_, "replay_endpoint", config.replay_endpoint, /*bind=*/true);
  }
  thread_ = std::thread([this] { run(); });
}

KvEventPublisher::~KvEventPublisher() {
  stopping_ = true;
  queue_.wake();
  thread_.join();
}

void KvEventPublisher::on_kv_events(const std::vector<KvEvent>& events) {
  if (queue_.try_push({next_++, unix_seconds(), events}) || !std::has_single_bit(++lost_)) return;
  spdlog::warn(
      "KV events are lost, {} batches by now: {} wait to be sent, all that max_queue_size "
      "allows",
      lost_, config_.max_queue_size);
}

void KvEventPublisher::run() {
  for (bool last = false; !last;) {
    queue_.wait_for(kPoll);
    last = stopping_;
    try {
      for (int i = 0; replays_ && i < kMaxRequests && answer_replay(); ++i) {
      }
      for (const Batch& batch : queue_.drain()) send(batch);
    } catch (const std::exception& error) {
      spdlog::error("KV events: {}", error.what());
    }
  }
}

void KvEventPublisher::send(const Batch& batch) {
  const std::vector<uint8_t> bytes = encode_kv_events(batch.events, batch.time, config_.layout);
  zmq::message_t payload(bytes.data(), bytes.size());
  if (replays_) {
    if (past_.size() == static_cast<size_t>(config_.buffer_steps)) past_.pop_front();
    past_.emplace_back(batch.number, zmq::message_t()).second.copy(payload);
  }
  events_.send(zmq::buffer(config_.topic), zmq::send_flags::sndmore);
  events_.send(big_endian(batch.number), zmq::send_flags::sndmore);
  events_.send(payload, zmq::send_flags::none);
}

// One request: the number of the first batch wanted. False when none waits.
bool KvEventPublisher::answer_replay() {
  std::vector<zmq::message_t> request;
  if (!zmq::recv_multipart(replays_, std::back_inserter(request), zmq::recv_flags::dontwait))
    return false;
  if (request.size() != 3 || request[2].size() != sizeof(uint64_t)) return true;
  const uint64_t first = from_big_endian(request[2]);
  zmq::message_t end;
  for (auto& [number, payload] : past_) {
    if (number >= first && !send_again(request[0], number, payload)) return true;
  }
  send_again(request[0], kEndOfReplay, end);
  return true;
}

// False when the client has gone or takes nothing.
bool KvEventPublisher::send_again(zmq::message_t& client, uint64_t number,
                                  zmq::message_t& payload) {
  constexpr auto kMore = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
  zmq::message_t address, content;
  address.copy(client);
  content.copy(payload);
  try {
    if (!replays_.send(address, kMore)) return false;
  } catch (const zmq::error_t&) {
    return false;
  }
  replays_.send(zmq::message_t(), kMore);
  replays_.send(big_endian(number), kMore);
  replays_.send(content, zmq::send_flags::dontwait);
  return true;
}

}  // namespace vamp
