// What example programs share: options with exit codes, and short texts.
#pragma once

#include <hasten/core/error.h>
#include <hasten/core/text.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iomanip>
#include <iostream>
#include <string>

namespace example {

/// Reads the options, then runs `program`. Returns 2 for options or data that do not fit, with the words on standard
/// error.
inline int run(CLI::App& app, int argc, char** argv, const std::function<void()>& program) {
  try {
    app.parse(argc, argv);
    program();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const hasten::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const hasten::DataError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}

inline std::string rounded(double value, int digits) {
  return hasten::text(std::fixed, std::setprecision(digits), value);
}

}  // namespace example
