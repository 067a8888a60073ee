// One level for the process, raised by the first of several and lowered by the last; see quiet_log.h.
#include "comm/store/quiet_log.h"

#include <c10/util/Logging.h>

#include <mutex>

namespace hasten::comm {
namespace {

constexpr int kWarning = 1, kError = 2;

struct Level {
  std::mutex mutex;
  int holders = 0;
  bool is_raised = false;
};

Level& level() {
  static auto* const one = new Level;  // never destroyed: stores may be used at the very end
  return *one;
}

}  // namespace

QuietLog::QuietLog() noexcept {
  Level& state = level();
  const std::lock_guard lock(state.mutex);
  if (state.holders++ > 0 || FLAGS_caffe2_log_level != kWarning) return;
  FLAGS_caffe2_log_level = kError;
  state.is_raised = true;
}

QuietLog::~QuietLog() {
  Level& state = level();
  const std::lock_guard lock(state.mutex);
  if (--state.holders > 0 || !state.is_raised) return;
  FLAGS_caffe2_log_level = kWarning;
  state.is_raised = false;
}

}  // namespace hasten::comm
