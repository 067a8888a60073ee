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

/// Returns "f (a.cpp:3) < main (a.cpp:9)": the frames of the program's own functions, innermost first; those of
/// libraries if there are none. Frames that were found by scanning begin with ~. `most` frames.
std::string stack_text(pid_t pid, const StackState& stack, size_t most = 6);

}  // namespace hasten::flight
