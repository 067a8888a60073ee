// Exceptions on their way to Python, and signals on their way into a wait; see bindings.h.
#include "hasten/core/error.h"

#include <optional>

#include "hasten/comm/types/wait_check.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

// The exception of a signal handler that ran while the main thread waited, until the wait has ended.
struct Raised {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
};

Raised& raised() {
  static Raised of_main_thread;
  return of_main_thread;
}

bool run_signal_handlers() {
  if (Py_IsInitialized() == 0) return true;
  const py::gil_scoped_acquire gil;
  hand_log_over();
  if (PyErr_CheckSignals() == 0) return true;
  PyErr_Fetch(&raised().type, &raised().value, &raised().trace);
  return false;
}

void raise(const char* name, const std::exception& error) {
  if (raise_from_signal()) return;
  const py::object type = py::module_::import("hasten.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

// Sets Python's error for an exception of this library; others are thrown on.
void translate(const std::exception_ptr& pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const comm::WaitInterrupted& error) {
    raise("CommError", error);
  } catch (const CommError& error) {
    raise("CommError", error);
  } catch (const UsageError& error) {
    raise("UsageError", error);
  } catch (const DataError& error) {
    raise("DataError", error);
  } catch (const InternalError& error) {
    raise("InternalError", error);
  }
}

}  // namespace

void look_at_signals_while_waiting() {
  thread_local std::optional<comm::WaitCheck> check;
  if (!check) check.emplace(&run_signal_handlers);
}

bool raise_from_signal() {
  if (raised().type == nullptr) return false;
  PyErr_Restore(raised().type, raised().value, raised().trace);
  raised() = {};
  return true;
}

void throw_in_python(const std::exception_ptr& pointer) {
  const py::gil_scoped_acquire gil;
  translate(pointer);
  throw py::error_already_set();
}

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr pointer) { translate(pointer); });
}

}  // namespace hasten::python
