// `hasten test`: `hasten launch` of the self-test program that lies beside this command. That one is linked
// to libtorch; this one is not.
#include <filesystem>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

const HelpText kHelp = {"hasten test [OPTIONS]",
                        "Checks collectives, the sharing out of samples, data parallelism and random numbers "
                        "on the processes that "
                        "hasten launch would start.",
                        "Exit code: 0 if all holds, 1 if not."};

std::string self_test_program() {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").replace_filename("hasten-self-test");
  if (std::filesystem::exists(path)) return path;
  throw UsageError({"test"}, "'", path.string(), "' does not exist. Install it, or build it: target ",
                   "hasten_self_test.");
}

}  // namespace

int test(const std::vector<std::string>& words) {
  const launcher::CommandLine line = read_options("test", test_options(), words);
  if (line.help) return std::cout << help_of(kHelp, test_options(), colours_wanted()), 0;
  std::vector<std::string> to_launch = {"--no_python"};
  for (const char* option : {"config_file", "num_processes"}) {
    if (line.has(option)) to_launch.insert(to_launch.end(), {std::string("--") + option, line.text(option)});
  }
  if (line.has("cpu")) to_launch.push_back("--cpu");
  to_launch.push_back(self_test_program());
  return launch(to_launch);
}

}  // namespace hasten::cli
