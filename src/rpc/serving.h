// Serving: one call that this worker serves, from its arrival to its answer.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/agent_core.h"

namespace hasten::rpc {

class Serving final : public detail::ServedCall {
 public:
  Serving(std::shared_ptr<AgentCore> core, int from, Decoded message);
  ~Serving() override;

  // ---- detail::ServedCall
  detail::Packed& packed() override { return message_.packed; }
  const std::shared_ptr<detail::Core>& core() const override { return base_core_; }
  const detail::Object& object() const override { return object_; }
  bool creates() const override { return creates_; }
  void store(detail::Object object) override;
  void reply(detail::Packed packed) override;
  void fail(std::exception_ptr error) noexcept override;

  /// Waits for the object if there is one, then runs in the thread of the function's options.
  void schedule();
  void run();
  /// "in the queue behind 16 others for 2.1 s", "running for 58.0 s".
  std::string state() const;
  /// Notifies the handler. Ends a call whose handler has not begun for lack of the object, or answers later.
  void cancel();
  bool cancelled() const { return cancelled_; }
  Clock::time_point deadline() const { return deadline_; }
  int caller() const { return from_; }
  /// The reply waits for the recorded calls that the handler has started.
  void add_nested(std::shared_ptr<detail::StateBase> call);

 private:
  void place();
  detail::ObjectId created_id() const { return {static_cast<uint32_t>(from_), head_.created}; }
  void answer(Kind kind, detail::Packed packed);
  void answer_after_nested(Kind kind, detail::Packed packed);
  detail::Packed error_values(const std::exception_ptr& error) const;
  void finish_stats(Clock::time_point ended);

  const std::shared_ptr<AgentCore> agent_;
  const std::shared_ptr<detail::Core> base_core_;
  const int from_;
  Decoded message_;
  const Head head_;
  ServedFunction& function_;
  const bool creates_;
  bool holds_ = false;
  detail::Object object_ = {};
  const Clock::time_point arrived_ = Clock::now();
  Clock::time_point deadline_ = Clock::time_point::max();
  std::atomic<Clock::time_point> started_{Clock::time_point::max()};
  std::atomic<bool> answered_ = false, cancelled_ = false;
  std::atomic<bool> parked_ = false;    // waits for its object
  std::atomic<bool> returned_ = false;  // the handler has returned, perhaps with a future
  std::mutex nested_mutex_;
  std::vector<std::shared_ptr<detail::StateBase>> nested_;
};

}  // namespace hasten::rpc
