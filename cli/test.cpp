// `hasten test`: `hasten launch` of the self-test program that lies beside this command. That one is linked
// to libtorch; this one is not.
#include <iostream>

#include "commands.h"
#include "help.h"
#include "options.h"
#include "self_test_program.h"

namespace hasten::cli {
namespace {

const HelpText kTestHelp = {"hasten test [OPTIONS]",
                            "Checks collectives, the sharing out of samples, data parallelism and random numbers "
                            "on the processes that "
                            "hasten launch would start.",
                            "Exit code: 0 if all holds, 1 if not."};

}  // namespace

int test(const std::vector<std::string>& words) {
  const launcher::CommandLine line = read_options("test", test_options(), words);
  if (line.help) return std::cout << help_of(kTestHelp, test_options(), colours_wanted()), 0;
  std::vector<std::string> to_launch = {"--no_python"};
  for (const char* option : {"config_file", "num_processes"}) {
    if (line.has(option)) to_launch.insert(to_launch.end(), {std::string("--") + option, line.text(option)});
  }
  if (line.has("cpu")) to_launch.push_back("--cpu");
  to_launch.push_back(self_test_program("test"));
  return launch(to_launch);
}

}  // namespace hasten::cli
