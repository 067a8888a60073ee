// Lines of the log on their way to Python's logging (python/hasten/logs.py).
//
// They are written by any thread, with or without the GIL, some while a lock is held that a thread with the GIL wants.
// So they wait in a list, which the main thread hands over: between two lines of Python, or while it waits for other
// ranks.
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/log.h"
#include "hasten/core/log_sink.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

struct Waiting {
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> lines;
  PyObject* take = nullptr;
};

Waiting& waiting() {
  static auto* const lines = new Waiting;  // never destroyed: lines may come at the very end
  return *lines;
}

int hand_over_soon(void*) {
  hand_log_over();
  return 0;
}

void add(LogLevel level, std::string_view line) {
  {
    const std::lock_guard lock(waiting().mutex);
    waiting().lines.emplace_back(level, line);
  }
  // Where too many calls wait already, the next line or wait has these handed over.
  (void)Py_AddPendingCall(&hand_over_soon, nullptr);
}

}  // namespace

void hand_log_over() {
  std::vector<std::pair<LogLevel, std::string>> lines;
  py::handle take;
  {
    const std::lock_guard lock(waiting().mutex);
    if (waiting().take == nullptr) return;
    lines.swap(waiting().lines);
    take = waiting().take;
  }
  for (const auto& [level, line] : lines) {
    try {
      // Texts of other programs may be cut anywhere, also within a character.
      const auto text = py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "replace"));
      take(static_cast<int>(level), text);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("hasten's log");
    }
  }
}

void bind_log(py::module_& module) {
  module.def(
      "take_log",
      [](py::function take) {
        {
          const std::lock_guard lock(waiting().mutex);
          waiting().take = take.release().ptr();
        }
        set_log_sink(&add);
      },
      "Calls take(level, line) for each line of the log, in the main thread.");
  module.def(
      "give_log_back",
      [] {
        set_log_sink(nullptr);
        hand_log_over();
      },
      "Standard error has the lines from now on.");
}

}  // namespace hasten::python
