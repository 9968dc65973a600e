// Between the engine's thread and the io threads: requests go in by id, what becomes of them comes
// back in batches, one for each io thread and step.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/listener_fanout.h"
#include "server/metrics.h"

namespace vamp {

// What the engine says about one request, in order.
struct EngineEvent {
  RequestId id = 0;
  bool finished = false;
  bool prompt = false;  // not finished: a token of the prompt, for its log-probability
  TokenId token = 0;    // not finished
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top_logprobs;
  FinishReason reason = FinishReason::kStop;  // finished
  std::string error;                          // finished with kError
  bool refused = false;                       // it never ran: the request's own fault
  RequestStats stats;

  size_t bytes() const {
    return sizeof(*this) + error.size() + top_logprobs.size() * sizeof(top_logprobs[0]);
  }
};

// Where events arrive. Filled and read on one io thread only.
struct EventQueue {
  std::vector<EngineEvent> events;
  size_t bytes = 0;   // of `events`
  bool lost = false;  // there was no memory for one
  size_t most_bytes = std::numeric_limits<size_t>::max();
  std::function<void()> waiter;    // called once, when there are events
  std::function<void()> overflow;  // called when nobody waits, and there are more than `most_bytes`
  bool signalled = false;
  Micros last_token = 0;  // for the latency between tokens

  void push(EngineEvent event) noexcept;
  std::vector<EngineEvent> take(size_t most);
  void wake() {
    if (auto resume = std::exchange(waiter, nullptr)) {
      resume();
    } else if (bytes > most_bytes && overflow) {
      overflow();
    }
  }
};

// What an engine is made of; the bridge owns it. Order matters: later members use earlier ones.
struct EngineParts {
  std::unique_ptr<Clock> clock;
  std::unique_ptr<MemoryLayout> own_layout;  // null: the executor's
  std::unique_ptr<Executor> executor;
  const MemoryLayout* layout = nullptr;
  std::unique_ptr<ReclaimPolicy> policy;
  EngineConfig config;
};

// Owns the engine and its thread. start() once; everything else from any thread. When the engine
// throws, every request ends with an error, and so does each that comes after.
class EngineBridge final : public EngineListener {
 public:
  // `metrics` must outlive this.
  explicit EngineBridge(Metrics& metrics) : metrics_(metrics) {}
  ~EngineBridge() override;

  // `listeners` are told too, from the engine's thread; they must outlive this.
  void start(EngineParts parts, std::vector<EngineListener*> listeners = {});
  // Ends the engine's thread. What is under way gets no further event.
  void stop();

  enum class Submitted { kYes, kQueueFull, kFailed };
  // Events go to `queue` on `executor`'s thread. `input.id` and `input.arrival` are set here.
  // `max_waiting`: requests beyond those that run; 0: no limit.
  Submitted submit(RequestInput& input, const std::shared_ptr<EventQueue>& queue,
                   const boost::asio::any_io_executor& executor, int max_waiting);
  // No further event of this request is delivered; it counts as ended by `reason`.
  void cancel(RequestId id, FinishReason reason = FinishReason::kCancelled) noexcept;
  bool reset_prefix_cache();

  // Ends every request with this error, and takes no more.
  void fail(const std::string& reason);
  // Why the engine serves no more; empty while it does.
  std::string failure() const;
  // True when requests are under way and no step has ended for so long.
  bool stalled(Micros time) const;
  int requests() const;
  Micros now() const { return parts_.clock ? parts_.clock->now() : 0; }
  const MemoryLayout& layout() const { return *parts_.layout; }

  void on_token(const RequestEvent& event) override { add_token(event, /*prompt=*/false); }
  void on_prompt_token(const RequestEvent& event) override { add_token(event, /*prompt=*/true); }
  void on_finished(const RequestEvent& event, const RequestStats& stats) override;
  void on_step(const StepStats& stats) override;
  void on_decision(const DecisionRecord& record) override;
  void on_delivered() override;

 private:
  using Batch = std::vector<std::pair<std::shared_ptr<EventQueue>, EngineEvent>>;
  // An io thread, and what waits to be posted to it.
  struct Lane {
    boost::asio::any_io_executor executor;
    Batch pending;
  };
  struct Subscriber {
    std::shared_ptr<EventQueue> queue;
    size_t lane = 0;
    // Nobody waits any more, but the engine has yet to say that it has ended.
    bool cancelled = false, cancel_sent = false;
    FinishReason cancelled_as = FinishReason::kCancelled;
  };

  void run();
  bool tell(const std::exception_ptr& fault);
  void add_token(const RequestEvent& event, bool prompt);
  size_t lane_of(const boost::asio::any_io_executor& executor);
  void post_pending();                      // with the lock held
  bool send_cancel(RequestId id) noexcept;  // likewise; false: try again
  void deliver(Batch& batch, Micros now);
  void observe(const EngineEvent& event, EventQueue* queue, Micros now);

  Metrics& metrics_;
  EngineParts parts_;
  ListenerFanout fanout_;
  std::unique_ptr<Engine> engine_;
  std::thread thread_;
  std::atomic<Micros> last_progress_ = 0;

  mutable std::mutex mutex_;
  std::unordered_map<RequestId, Subscriber> subscribers_;
  std::vector<Lane> lanes_;
  int cancelled_ = 0;             // of subscribers_
  bool unsent_cancels_ = false;   // the inbox was full
  std::vector<StepStats> steps_;  // for the metrics, with the next batch
  RequestId next_id_ = 1;
  int running_ = 0;
  std::string failure_;
};

}  // namespace vamp
