// `hasten`: finds the command that is meant and runs it.
//
// Each command reads its own options. The exception of a command becomes a line on standard error and an exit code: 2
// for a UsageError, 1 for anything else.
#include <cstdio>
#include <functional>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/core/version.h"
#include "hasten/launch/base/standard_descriptors.h"
#include "hasten/launch/options/option_table.h"
#include "trace.h"
#include "verify.h"

namespace {

struct Command {
  std::string name;
  std::string summary;
  std::function<int(const std::vector<std::string>&)> run;
};

std::vector<Command> commands() {
  using namespace hasten::cli;
  return {{"launch", "run a program or Python script in several processes", launch},
          {"ps", "list the runs on this machine", ps},
          {"watch", "show what the ranks of a run do, each second", watch},
          {"stacks", "print where the threads of a run's ranks stand", stacks},
          {"trace", "write a profile of the next steps of a run's ranks", trace},
          {"config", "write the configuration file: by questions, default, or update", config},
          {"env", "print versions, devices and the configuration, for a bug report", env},
          {"test", "check the library on the configured processes", test},
          {"tpu-config", "run commands on the machines of a TPU pod", tpu_config},
          {"estimate-memory", "print the memory that a model's weights take", estimate_memory},
          {"merge-weights", "merge a sharded checkpoint into model.safetensors", merge_weights},
          {"convert", "convert weights between safetensors, torch.save and checkpoints", convert},
          {"zero-to-fp32", "merge a DeepSpeed ZeRO checkpoint", zero_to_fp32},
          {"checkpoint", "list, show, verify, compare, prune or repair checkpoints", checkpoint},
          {"track", "show how far the trackers of runs have come, complete or replay runs", track},
          {"board", "make one HTML page of runs: curves, images, settings, speed of ranks", board},
          {"plan", "print memory and step time of a training, and the layout to take", plan_command},
          {"verify", "check that N processes compute what one does, and say why not", verify_command},
          {"to-fsdp2", "bring a configuration of FSDP 1 to FSDP 2", to_fsdp2},
          {"completion", "print the completion of bash or zsh", completion}};
}

std::string help() {
  std::string text =
      "hasten: libtorch training on any number of processes\n\n"
      "Usage: hasten COMMAND [ARGUMENTS]\n\n"
      "Commands:\n";
  for (const Command& command : commands()) {
    text.append("  ").append(command.name).append(17 - command.name.size(), ' ').append(command.summary).append("\n");
  }
  return text +
         "\nOptions:\n"
         "  -h, --help    this text; hasten COMMAND --help for a command's\n"
         "  --version     the version\n";
}

// "hasten help", and "hasten help COMMAND" as "hasten COMMAND --help".
int run_help(const std::vector<std::string>& words, const std::function<int(const std::vector<std::string>&)>& run) {
  if (words.size() > 2) {
    std::cerr << "hasten: help takes one command, not '" << words[2] << "' as well; see hasten --help\n";
    return 2;
  }
  if (words.size() < 2 || words[1] == "help") return std::cout << help(), 0;
  return run({words[1], "--help"});
}

// A program's path, or an option of `hasten launch`.
bool belongs_to_launch(const std::string& word) {
  if (!word.starts_with("-")) return word.find('/') != std::string::npos || word.ends_with(".py");
  const std::string name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  return word == "-n" || hasten::launcher::find_option(hasten::launcher::launch_options(), name) != nullptr;
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) {
    std::cerr << help();
    return 2;
  }
  const std::string& name = words.front();
  if (name == "help") return run_help(words, run);
  if (name == "-h" || name == "--help") return std::cout << help(), 0;
  if (name == "--version") return std::cout << "hasten " << hasten::version() << "\n", 0;
  if (name == "remote") return hasten::cli::remote({words.begin() + 1, words.end()});
  std::vector<std::string> names = {"--help", "--version", "help"};
  for (const Command& command : commands()) {
    if (command.name == name) return command.run({words.begin() + 1, words.end()});
    names.push_back(command.name);
  }
  const bool is_option = name.starts_with("-");
  std::string guess = hasten::did_you_mean(name, names);
  if (guess.empty()) guess = belongs_to_launch(name) ? "; hasten launch starts programs" : "; see hasten --help";
  std::cerr << "hasten: unknown " << (is_option ? "option" : "command") << " '" << name << "'" << guess << "\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  hasten::launcher::open_standard_descriptors();
  try {
    return run({argv + 1, argv + argc});
  } catch (const hasten::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "hasten: " << error.what() << "\n";
    return 1;
  }
}
