// A fixture for tests beside the peers' programs: a folder, and the Python that HASTEN_PEERS_PYTHON names.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/text.h"
#include "support/folder.h"

namespace hasten::testing {

/// Returns why a test cannot use the Python that `variable` names: it names none, or one without some of the modules.
/// Returns nothing if it can.
inline std::string why_without_python(const std::string& variable, const std::vector<std::string>& modules) {
  const std::string python = Environment::current().text(variable).value_or("");
  if (python.empty()) return text(variable, " is not set. Let it name a Python with ", join(modules, ", "), '.');
  const std::string find =
      "import importlib.util, sys; print(*[m for m in sys.argv[1:] if not importlib.util.find_spec(m)])";
  FILE* const pipe = ::popen((python + " -c '" + find + "' " + join(modules, " ")).c_str(), "r");
  std::string missing;
  char buffer[256];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) missing.append(buffer, count);
  if (::pclose(pipe) != 0) return text("the Python that ", variable, " names, '", python, "', does not run.");
  while (!missing.empty() && missing.back() == '\n') missing.pop_back();
  return missing.empty() ? "" : text("'", python, "', which ", variable, " names, has no module ", missing, '.');
}

/// Skips its tests where no Python with the modules is named.
class InPython : public InFolder {
 protected:
  explicit InPython(std::vector<std::string> modules = {"torch"}) : modules_(std::move(modules)) {}
  void SetUp() override {
    if (const auto why = why_without_python("HASTEN_PEERS_PYTHON", modules_); !why.empty()) GTEST_SKIP() << why;
    python_ = *Environment::current().text("HASTEN_PEERS_PYTHON");
  }

  /// Runs a program in the test's folder, with the shell's words before and behind it. Returns its output, or "failed"
  /// and the output.
  std::string run_python(const std::string& program, const std::string& before = "",
                         const std::string& behind = "2>&1") const {
    const std::string file = write("program.py", "import os\nos.chdir(r'" + folder_.string() + "')\n" + program);
    FILE* const pipe = ::popen((before + " " + python_ + " -W ignore " + file + " " + behind).c_str(), "r");
    std::string out;
    char buffer[4096];
    while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, count);
    const int status = ::pclose(pipe);
    return status == 0 ? out : text("failed with status ", status, ": ", out);
  }

  std::string python_;

 private:
  std::vector<std::string> modules_;
};

}  // namespace hasten::testing
