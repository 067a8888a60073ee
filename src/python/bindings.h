// The parts of the module _engine. Each adds its names to the module; module.cpp calls them all.
#pragma once

#include <exception>

#include "python/values.h"

namespace hasten::python {

/// Makes this library's exceptions those of hasten.errors, wherever they leave C++ for Python.
void bind_errors(py::module_& module);
/// ProcessGroupHasten, create_group, fail, end_watch.
void bind_group(py::module_& module);
/// take_log, give_log_back.
void bind_log(py::module_& module);
/// Snapshot, load_value, load_tensors.
void bind_files(py::module_& module);
/// Trackers.
void bind_tracking(py::module_& module);
/// ShardOfBatches, BatchShard.
void bind_data(py::module_& module);
/// Trainer, DistributedModule, Twin.
void bind_trainer(py::module_& module);
/// UnevenLoop.
void bind_uneven_loop(py::module_& module);

/// Throws one of this library's exceptions as Python's, for callers between which and Python libtorch translates.
[[noreturn]] void throw_in_python(const std::exception_ptr& pointer);

/// While the main thread waits for other ranks, Python's signal handlers run. A handler that raises, as Ctrl-C's does,
/// ends the wait with its exception. Called in the main thread, with the GIL.
void look_at_signals_while_waiting();
/// Hands lines of the log that wait for Python over. With the GIL.
void hand_log_over();
/// Raises in Python what a signal handler raised during a wait; false if none did. With the GIL.
bool raise_from_signal();

}  // namespace hasten::python
