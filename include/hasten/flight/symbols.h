// Names of addresses: functions by the symbol tables of ELF files, lines of the program by addr2line if that is there.
//
// Without libdw: the tables are read in one pass for all addresses of a file, so a library of 600,000 symbols takes
// some milliseconds.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/flight/pages.h"

namespace hasten::flight {

struct Frame {
  std::string function = {};  ///< demangled, without arguments; "" if it is unknown
  std::string place = {};     ///< "loss.cpp:58", else the file's name: "libtorch_cpu.so"
  bool in_program = false;    ///< of the program's own file
};

/// Returns a frame for each address of a process that runs.
std::vector<Frame> name_addresses(pid_t pid, const std::vector<uint64_t>& addresses);

/// "torch::nn::Module::train(bool)" -> "torch::nn::Module::train"; templates lose their arguments.
std::string short_name(std::string_view demangled);

struct StackWords {
  /// "f (a.cpp:3) < main (a.cpp:9)": the frames of the program's own functions, innermost first; those of libraries if
  /// there are none. Frames that were found by scanning begin with ~.
  std::string text = {};
  /// Names the wait, if that is for a device: "a copy from or to its device (cudaStreamSynchronize)".
  std::string device_wait = {};
};

/// Returns the words of a stack, `most` frames of it.
StackWords name_stack(pid_t pid, const StackState& stack, size_t most = 6);
std::string stack_text(pid_t pid, const StackState& stack, size_t most = 6);

/// Returns what a thread waits for whose frames, innermost first, have these names; "" if it is no device.
std::string device_wait(const std::vector<std::string>& functions);

}  // namespace hasten::flight
