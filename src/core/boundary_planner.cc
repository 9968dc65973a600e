#include "core/boundary_planner.h"

#include <algorithm>

namespace vamp {
namespace {
constexpr Micros kRoomLimitedFor = 2 * kSecond;
constexpr int kGridPoints = 16;
}  // namespace

BoundaryPlanner::BoundaryPlanner(const MemoryLayout& layout, const Config& config)
    : layout_(layout),
      config_(config),
      prefill_(config.prefill),
      decode_(config.decode),
      up_(config.up_bytes_per_us),
      down_(config.down_bytes_per_us),
      heat_(layout, config.experts_per_token),
      reuse_(config.reuse_window_turns),
      target_(layout.min_groups_out),
      barred_for_(config.bar / 2) {}

void BoundaryPlanner::observe(const StepObservation& step) {
  const double tokens = step.decode_requests + step.prefill_tokens;
  if (tokens <= 0) return;
  const Micros compute = std::max(1.0, step.duration - step.staging.stall);
  if (step.prefill_tokens == 0) {
    decode_.add(step.decode_requests, step.context_tokens, compute);
  } else {
    const Micros prefill =
        compute -
        (step.decode_requests > 0 ? decode_.step_us(step.decode_requests, step.context_tokens) : 0);
    if (step.prefill_tokens >= 64) prefill_.add(step.prefill_tokens, step.prefill_context, prefill);
    prefill_load_.add(std::max(0.0, prefill), step.now);
    chunk_.add(step.prefill_tokens);
    max_chunk_ = std::max(max_chunk_, static_cast<double>(step.prefill_tokens));
  }
  prefill_steps_.add(step.prefill_tokens > 0 ? 1 : 0);
  written_.add(tokens, step.now);
  step_us_.add(step.duration);
  batch_.add(step.running);
  waiting_.add(step.waiting);
  if (step.decode_requests > 0) context_.add(step.context_tokens / step.decode_requests);
  up_.add(step.promoted_bytes, step.promote_us);
  down_.add(step.demoted_bytes, step.demote_us);
  const double staged = static_cast<double>(step.staging.staged_bytes);
  staging_share_.add(std::min(0.95, staged / up_rate() / std::max(1.0, step.duration)));
  if (step.staging.staged_bytes > 0 && step.staging.used == StagingMode::kActivated) {
    hidden_.add(tokens, staged, up_rate(), step.staging.stall);
    heat_.add_activation(step.groups_out, tokens,
                         static_cast<double>(step.staging.activated_bytes));
  }
  if (step.expert_counts) heat_.add_counts(*step.expert_counts);
}

void BoundaryPlanner::turn_ended(SessionId session, const RequestStats& stats, Micros now) {
  const int context = stats.prompt_tokens + stats.output_tokens;
  reuse_.turn_ended(session, context);
  output_.add(stats.output_tokens);
  released_.add(context, now);
  turn_rate_.add(1, now);
  ++turns_;
}

double BoundaryPlanner::pool_tokens(int groups_out) const {
  const double bytes = static_cast<double>(layout_.base_pool_bytes) +
                       static_cast<double>(layout_.pool_slots(groups_out)) *
                           static_cast<double>(layout_.group_bytes());
  return bytes / static_cast<double>(layout_.block_bytes) * layout_.block_tokens;
}

Micros BoundaryPlanner::step_delay(int groups_out, double tokens) const {
  if (groups_out <= 0) return 0;
  const Micros step = tokens > 2 * batch_.value() + 64
                          ? price::prefill(prefill_.cost(), 0, tokens)
                          : decode_.step_us(tokens, tokens * context_.value());
  const double whole = static_cast<double>(groups_out) * static_cast<double>(layout_.group_bytes());
  return price::staging_delay(std::min(whole, heat_.activated_bytes(groups_out, tokens)), whole,
                              up_rate(), hidden_.hidden(tokens), step);
}

Micros BoundaryPlanner::mean_step_delay(int groups_out, double decodes) const {
  const double with_prefill = prefill_steps_.value();
  return with_prefill * step_delay(groups_out, decodes + chunk_.value()) +
         (1 - with_prefill) * step_delay(groups_out, decodes);
}

double BoundaryPlanner::reachable_batch(int groups_out, Micros now) const {
  const double running = std::max(1.0, batch_.value());
  const bool limited = now - last_room_limited_ < kRoomLimitedFor;
  const double wanted = running + (limited ? waiting_.value() : 0);
  // Requests come whole: on average room for half of one stays empty.
  const double fits =
      context_.value() > 0 ? pool_tokens(groups_out) / context_.value() - 0.5 : wanted;
  return std::max(1.0, std::min(wanted, fits));
}

BoundaryPlanner::Forecast BoundaryPlanner::forecast(int groups_out, double host_tokens,
                                                    Micros now) const {
  const double pool = pool_tokens(groups_out);
  const Micros missed = reuse_.prefill_per_turn(pool + host_tokens, prefill_.cost());
  // What only the host holds is copied back: the copy slows steps a little.
  const Micros without_host =
      host_tokens > 0 ? reuse_.prefill_per_turn(pool, prefill_.cost()) : missed;
  const double promoted_tokens = (without_host - missed) / std::max(1e-3, prefill_.cost().c1);
  const double token_bytes = static_cast<double>(layout_.block_bytes) / layout_.block_tokens;
  const Micros promotion = config_.copy_slowdown * promoted_tokens * token_bytes / up_rate();

  Forecast result;
  result.batch = reachable_batch(groups_out, now);
  const Micros step = decode_.step_us(result.batch, result.batch * context_.value()) +
                      step_delay(groups_out, result.batch);
  const double new_tokens = missed / std::max(1e-3, prefill_.cost().c1);
  const double chunks = std::max(1.0, new_tokens / max_chunk_);
  const Micros prefill =
      missed + promotion +
      chunks * step_delay(groups_out, std::min(new_tokens, max_chunk_) + result.batch);
  result.engine_per_turn =
      price::engine_time_per_turn(prefill, output_.value(), result.batch, step);
  result.tpot = result.engine_per_turn * result.batch / std::max(1.0, output_.value());
  return result;
}

bool BoundaryPlanner::worth_restoring(int more, int fewer, double host_tokens, Micros now) const {
  const auto missed = [&](int groups_out) {
    return reuse_.prefill_per_turn(pool_tokens(groups_out) + host_tokens, prefill_.cost());
  };
  const double decodes = std::max(1.0, batch_.value());
  const Micros faster_step = mean_step_delay(more, decodes) - mean_step_delay(fewer, decodes);
  return faster_step * steps_per_us() > (missed(fewer) - missed(more)) / service_interval(now);
}

int BoundaryPlanner::target(Micros now, double host_tokens, Micros interval) {
  if (now - planned_at_ < interval) return target_;
  planned_at_ = now;
  const int low = layout_.min_groups_out, high = layout_.max_groups_out();
  if (turns_ < config_.min_turns || high <= low) return target_ = low;
  const Micros tpot_bound = (1 + config_.tpot_tolerance) * forecast(low, 0, now).tpot;
  const int step = std::max(1, layout_.increment_groups);
  int best = low;
  Micros least = forecast(low, host_tokens, now).engine_per_turn;
  for (int i = 1; i <= kGridPoints; ++i) {
    int n = low + static_cast<int>(static_cast<int64_t>(high - low) * i / kGridPoints);
    if (n != high) n = std::min(high, (n + step - 1) / step * step);
    const Forecast at = forecast(n, host_tokens, now);
    if (at.tpot <= tpot_bound && at.engine_per_turn < least) {
      least = at.engine_per_turn;
      best = n;
    }
  }
  const Forecast current = forecast(target_, host_tokens, now);
  const bool too_slow = current.tpot > tpot_bound;
  if (too_slow && target_ > low) {
    // The plan that has led here foresaw fewer requests at once: not again for a while.
    barred_for_ = now - raised_at_ > 4 * barred_for_
                      ? config_.bar
                      : std::min(2 * barred_for_, config_.longest_bar);
    barred_until_ = now + barred_for_;
  }
  if (now < barred_until_) best = std::min(best, low);
  const bool keep = !too_slow && least > (1 - config_.hysteresis) * current.engine_per_turn;
  // Nothing to gain anywhere: back to the whole model, however small the loss.
  if (keep && best != low) return target_;
  if (best > target_) raised_at_ = now;
  target_ = best;
  return target_;
}

}  // namespace vamp
