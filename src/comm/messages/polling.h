// Polling: whether a thread that waits for messages polls for a while before it sleeps.
//
// A thread on another core takes some 25 us to wake. One that polls reads a message that much sooner. But it takes a
// core. On a busy machine the peer's thread needs it to answer. A thread that has used up its share of a core loses it
// for milliseconds. So each poll is judged. One that found nothing, or that was interrupted, makes the next polls wait,
// for longer each time.
#pragma once

#include <atomic>
#include <chrono>

namespace hasten::comm {

/// The judgement of polls, apart from clocks and cores. Any thread may use it.
class PollingRecord {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  /// A poll that finds nothing costs its time. With this pause behind it that is 5 % of a core at most.
  static constexpr Duration kPauseOfMiss = std::chrono::milliseconds(1);
  /// A thread that is interrupted loses a slice of the scheduler, some milliseconds.
  static constexpr Duration kPauseOfInterruption = std::chrono::milliseconds(10);
  static constexpr Duration kLongestPause = std::chrono::seconds(1);

  bool may_poll(Time now) const { return now.time_since_epoch().count() >= next_.load(std::memory_order_relaxed); }
  /// A message came.
  void found() { after_miss_.store(kPauseOfMiss.count(), std::memory_order_relaxed); }
  /// No message came. Successive misses double the pause.
  void missed(Time now);
  /// Another thread had the core. The pause doubles if polls have gone on for less than eight pauses since the last
  /// one.
  void interrupted(Time now);

 private:
  using Count = std::atomic<Duration::rep>;
  /// Returns the end of the pause.
  Duration::rep pause(Time now, Count& length);

  Count next_ = 0, resumed_ = 0;
  Count after_miss_ = kPauseOfMiss.count(), after_interruption_ = kPauseOfInterruption.count();
};

/// Polls of one kind of wait, on this machine.
class Polling {
 public:
  /// Two processors and more are needed: one for the peer.
  Polling();
  /// Calls `is_ready` for some 50 us, until it returns true. Returns false at once where polling does not pay.
  template <class IsReady>
  bool poll(const IsReady& is_ready) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::microseconds kTime{50};
    constexpr std::chrono::microseconds kInterruption{200};  // the timer's own ticks take up to 70
    if (!has_cores_) return false;
    auto last = Clock::now();
    if (!record_.may_poll(last)) return false;
    const auto end = last + kTime;
    for (;;) {
      const bool ready = is_ready();
      const auto now = Clock::now();
      if (now - last > kInterruption) {
        record_.interrupted(now);
        return ready;
      }
      if (ready) {
        record_.found();
        return true;
      }
      if (now > end) {
        record_.missed(now);
        return false;
      }
      last = now;
      relax();
    }
  }

 private:
  static void relax();

  const bool has_cores_;
  PollingRecord record_;
};

}  // namespace hasten::comm
