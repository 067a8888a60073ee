// Printing once, not once per process.
#pragma once

#include <string>

#include "hasten/core/text.h"
#include "hasten/process/process.h"

namespace hasten::process {

namespace detail {
void print_line(const std::string& line);
}

/// Writes all parts and a line break to standard output, once per machine (its local main process), as Accelerate's
/// print does. Each line is a single write, so that lines of several processes do not mix.
template <class... Parts>
void print(const Process& process, const Parts&... parts) {
  if (process.is_local_main_process()) detail::print_line(text(parts...));
}

/// As print, but once in the whole run (the main process).
template <class... Parts>
void print_once(const Process& process, const Parts&... parts) {
  if (process.is_main_process()) detail::print_line(text(parts...));
}

}  // namespace hasten::process
