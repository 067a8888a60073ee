// A fixture for tests beside the peers' programs: a folder, and the Python that HASTEN_PEERS_PYTHON names.
#pragma once

#include <cstdio>
#include <string>

#include "hasten/core/env.h"
#include "support/folder.h"

namespace hasten::testing {

/// Skips its tests where no Python is named.
class InPython : public InFolder {
 protected:
  void SetUp() override {
    python_ = Environment::current().text("HASTEN_PEERS_PYTHON").value_or("");
    if (python_.empty())
      GTEST_SKIP() << "HASTEN_PEERS_PYTHON is not set. Let it name a Python with the peer's packages.";
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
};

}  // namespace hasten::testing
