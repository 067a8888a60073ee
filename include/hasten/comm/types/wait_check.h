// WaitCheck: lets a program look up while one of its threads waits for an operation, for signals above all.
//
// A wait for a peer polls first and then sleeps. Between two sleeps, about every tenth of a second, it runs the checks
// of its own thread. Waits for a message over Gloo do not look up.
#pragma once

#include <functional>
#include <stdexcept>

namespace hasten::comm {

/// Thrown by a wait that a check has ended. Group makes a CommError of it.
struct WaitInterrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class WaitCheck {
 public:
  /// While it exists, waits of this thread call `goes_on` between two sleeps and end where it returns false. The
  /// operation that was waited for cannot be completed then, and neither can later ones of its group. Scopes nest.
  explicit WaitCheck(std::function<bool()> goes_on);
  ~WaitCheck();
  WaitCheck(const WaitCheck&) = delete;
  WaitCheck& operator=(const WaitCheck&) = delete;

  /// Returns true if this thread has a check.
  static bool is_active() noexcept;
  /// Runs the checks of this thread. Throws: WaitInterrupted if one of them returns false.
  static void run();

 private:
  const std::function<bool()> goes_on_;
  const WaitCheck* const outer_;
};

}  // namespace hasten::comm
