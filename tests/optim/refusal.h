// The words with which something is refused.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "hasten/core/error.h"

namespace hasten::optim::testing {

/// The message of the UsageError that `fn` throws; "" and a failure if it throws none.
template <class Fn>
std::string refusal(Fn&& fn) {
  try {
    fn();
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace hasten::optim::testing
