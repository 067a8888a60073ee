// What a test's code writes to standard error, and how often words stand in it.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace hasten::testing {

template <class Fn>
std::string said_in(const Fn& fn) {
  ::testing::internal::CaptureStderr();
  fn();
  return ::testing::internal::GetCapturedStderr();
}

inline int count_of(const std::string& text, const std::string& words) {
  int count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

}  // namespace hasten::testing
