// Operations that are still under way when an exception has left a backward.
#pragma once

#include <exception>
#include <optional>

#include "hasten/comm/types/work.h"

namespace hasten::parallel {

/// Waits for an exchange that nobody has waited for: it still writes into memory that the next backward uses.
/// How it ends is nobody's concern; the next operation says what is wrong.
inline void end_abandoned(std::optional<comm::Work<>>& work) noexcept {
  if (!work) return;
  try {
    work->wait();
  } catch (const std::exception&) {
  }
  work.reset();
}

}  // namespace hasten::parallel
