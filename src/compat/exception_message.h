// The message of an exception that a program's code, or libtorch, has thrown.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace hasten::compat {

/// Returns the message, of libtorch's exceptions without their backtrace.
inline std::string message_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
}

/// Returns the message of the exception that is being handled.
inline std::string message_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return message_of(error);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace hasten::compat
