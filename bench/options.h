// The options of a benchmark program, with the command's exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace bench {

/// Reads the options. Ends the program with 0 behind --help, and with 2 where options do not fit, with the words on
/// standard error.
inline void parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
}

}  // namespace bench
