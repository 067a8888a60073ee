// Stacks of this process's threads, taken by a signal to each of them.
//
// The handler unwinds, and scans the stack for return addresses of the program itself, since kernels of MKL and oneDNN
// have no unwind information. A signal interrupts nanosleep, poll and the like, so stacks are taken when asked for and
// not by time.
#pragma once

#include "hasten/flight/page.h"

namespace hasten::flight {

/// SIGRTMIN + 5.
int default_stack_signal();

/// Installs the handler of `signal`. False if the program has one of its own there, which stays. 0: none, false.
/// A later call with the same signal does nothing.
bool install_stack_handler(int signal);

/// The signal of the installed handler; 0 without one. Threads of the library leave it open.
int stack_signal() noexcept;

/// Writes the stacks of all threads but the caller's. Waits until all have answered, or none has for half a second.
/// One caller at a time; others wait.
void take_stacks(PageAnswer& answer);

}  // namespace hasten::flight
