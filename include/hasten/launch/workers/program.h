// From the words on the command line to what is executed: the program's file and its arguments.
//
// Looked up once, before any worker starts, so that a misspelt name is one message and not one per worker.
#pragma once

#include <string>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::launcher {

/// A worker's program: `file` is a path, `arguments` its argv with the name as the first.
struct Program {
  std::string file;
  std::vector<std::string> arguments;
  size_t num_own = 1;  ///< how many of them come before those that the user gave
};

/// How the first word is meant.
enum class ProgramKind {
  kByName,  ///< a `.py` file is a Python script, anything else a program
  kDirect,  ///< a program, whatever its name
  kScript,  ///< a Python script, whatever its name
  kModule,  ///< a Python module, as `python -m` takes it
};

/// Finds `words[0]` as a shell does: by path if it has a slash, else in PATH. Python is PYTHON_EXEC, as with torchrun,
/// else the python3 of PATH, with its output unbuffered. The other words are passed on untouched.
/// Throws: UsageError if there is no such file or it cannot be executed.
Program find_program(const std::vector<std::string>& words, const Environment& environment,
                     ProgramKind kind = ProgramKind::kByName);

/// `program` with `arguments` in front of those that the user gave it (and behind a script's name).
Program with_arguments(Program program, const std::vector<std::string>& arguments);

/// Replaces this process by `program`. It returns only if that fails, with a line on standard error and a shell's exit
/// code (127 not found, 126 not executable).
int execute(const Program& program, const Environment& environment);

}  // namespace hasten::launcher
