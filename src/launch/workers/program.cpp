// Program lookup and execution; see program.h.
#include "hasten/launch/workers/program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "hasten/core/error.h"
#include "hasten/core/path_search.h"
#include "hasten/core/shell.h"

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;

void require_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw UsageError({"launch"}, "'", path, "' does not exist. Check the name and the current folder.");
  }
  if (fs::is_directory(path, ignored)) {
    throw UsageError({"launch"}, "'", path, "' is a folder; expected a program.");
  }
}

std::string python_of(const std::string& script, const Environment& environment) {
  if (const auto chosen = environment.text("PYTHON_EXEC")) {
    const std::string path = core::find_on_path(*chosen, environment);
    if (!path.empty()) return path;
    throw UsageError({"launch"}, "PYTHON_EXEC='", *chosen, "' is no program. Correct it or unset it.");
  }
  const std::string path = core::find_on_path("python3", environment);
  if (!path.empty()) return path;
  throw UsageError({"launch"}, "'", script, "' needs python3, which is not in PATH. Install Python or add ",
                   "its folder to PATH.");
}

Program with_python(const std::vector<std::string>& words, const Environment& environment, bool module) {
  if (!module) require_file(words.front());
  const std::string python = python_of(words.front(), environment);
  // Python finds its virtual environment by the path it was called with.
  Program program{python, {python, "-u"}};
  if (module) program.arguments.push_back("-m");
  program.num_own = program.arguments.size() + 1;
  program.arguments.insert(program.arguments.end(), words.begin(), words.end());
  return program;
}

// The environment in the form that exec takes.
std::vector<std::string> lines_of(const Environment& environment) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : environment.variables()) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> pointers_to(std::vector<std::string>& lines) {
  std::vector<char*> pointers;
  for (std::string& line : lines) pointers.push_back(line.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Program find_program(const std::vector<std::string>& words, const Environment& environment, ProgramKind kind) {
  const std::string& name = words.front();
  const bool by_name = kind == ProgramKind::kByName && name.ends_with(".py");
  if (by_name || kind == ProgramKind::kScript) return with_python(words, environment, /*module=*/false);
  if (kind == ProgramKind::kModule) return with_python(words, environment, /*module=*/true);
  if (name.find('/') == std::string::npos) {
    const std::string path = core::find_on_path(name, environment);
    if (!path.empty()) return {path, words};
    const bool here = core::is_executable("./" + name);
    throw UsageError({"launch"}, "program '", name, "' is not in PATH. ",
                     here ? "The current folder has one: start it as " + shell_word("./" + name) + "."
                          : "Check the name, or give the program's path.");
  }
  require_file(name);
  if (access(name.c_str(), X_OK) != 0) {
    throw UsageError({"launch"}, "'", name, "' is not executable. Make it so (chmod +x ", shell_word(name),
                     "), or name its interpreter first (bash ", shell_word(name), ").");
  }
  return {name, words};
}

Program with_arguments(Program program, const std::vector<std::string>& arguments) {
  const auto place = program.arguments.begin() + static_cast<std::ptrdiff_t>(program.num_own);
  program.arguments.insert(place, arguments.begin(), arguments.end());
  return program;
}

int execute(const Program& program, const Environment& environment) {
  std::vector<std::string> arguments = program.arguments;
  std::vector<std::string> variables = lines_of(environment);
  // execvpe, because, as a shell does, it passes a script without a #! line to sh.
  execvpe(program.file.c_str(), pointers_to(arguments).data(), pointers_to(variables).data());
  const int reason = errno;
  std::cerr << "hasten: cannot execute '" << program.file << "': " << std::strerror(reason) << std::endl;
  return reason == ENOENT ? 127 : 126;
}

}  // namespace hasten::launcher
