// Operations that are still under way when an exception has left a backward.
#pragma once

#include <exception>
#include <optional>

#include "hasten/comm/types/work.h"

namespace hasten::parallel {

/// Waits for an exchange without a waiter: it still writes into memory that the next backward uses. Its result is
/// ignored; the next operation reports the error.
inline void end_abandoned(std::optional<comm::Work<>>& work) noexcept {
  if (!work) return;
  try {
    work->wait();
  } catch (const std::exception&) {
  }
  work.reset();
}

}  // namespace hasten::parallel
