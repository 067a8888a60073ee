// The checks of a thread; see wait_check.h.
#include "hasten/comm/types/wait_check.h"

#include <utility>

namespace hasten::comm {
namespace {

const WaitCheck*& innermost() {
  thread_local const WaitCheck* check = nullptr;
  return check;
}

}  // namespace

WaitCheck::WaitCheck(std::function<bool()> goes_on) : goes_on_(std::move(goes_on)), outer_(innermost()) {
  innermost() = this;
}

WaitCheck::~WaitCheck() {
  innermost() = outer_;
}

bool WaitCheck::is_active() noexcept {
  return innermost() != nullptr;
}

void WaitCheck::run() {
  for (const WaitCheck* check = innermost(); check != nullptr; check = check->outer_) {
    if (!check->goes_on_()) throw WaitInterrupted("the wait was interrupted");
  }
}

}  // namespace hasten::comm
