// The command `hasten` itself: its texts, its exit codes, and the frozen list of flags.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>

#include "cli/command.h"
#include "hasten/core/version.h"

namespace hasten {
namespace {

using test::CommandResult;
using test::run_command;

CommandResult hasten_with(std::vector<std::string> words) {
  words.insert(words.begin(), HASTEN_COMMAND);
  return run_command(words);
}

constexpr const char* kHelp =
    "hasten: libtorch training on any number of processes\n"
    "\n"
    "Usage: hasten COMMAND [ARGUMENTS]\n"
    "\n"
    "Commands:\n"
    "  launch           run a program or Python script in several processes\n"
    "  ps               list the runs on this machine\n"
    "  watch            show what the ranks of a run do, each second\n"
    "  stacks           print where the threads of a run's ranks stand\n"
    "  trace            write a profile of the next steps of a run's ranks\n"
    "  config           write the configuration file: by questions, default, or update\n"
    "  env              print versions, devices and the configuration, for a bug report\n"
    "  test             check the library on the configured processes\n"
    "  tpu-config       run commands on the machines of a TPU pod\n"
    "  estimate-memory  print the memory that a model's weights take\n"
    "  merge-weights    merge a sharded checkpoint into model.safetensors\n"
    "  convert          convert weights between safetensors, torch.save and checkpoints\n"
    "  zero-to-fp32     merge a DeepSpeed ZeRO checkpoint\n"
    "  checkpoint       list, show, verify, compare, prune or repair checkpoints\n"
    "  track            show how far the trackers of runs have come, complete or replay runs\n"
    "  board            make one HTML page of runs: curves, images, settings, speed of ranks\n"
    "  plan             print memory and step time of a training, and the layout to take\n"
    "  verify           check that N processes compute what one does, and say why not\n"
    "  to-fsdp2         bring a configuration of FSDP 1 to FSDP 2\n"
    "  completion       print the completion of bash or zsh\n"
    "\n"
    "Options:\n"
    "  -h, --help    this text; hasten COMMAND --help for a command's\n"
    "  --version     the version\n";

TEST(Hasten, HelpGoesToStandardOutput) {
  for (const char* option : {"--help", "-h"}) {
    const auto result = hasten_with({option});

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.out, kHelp);
    EXPECT_EQ(result.err, "");
  }
}

TEST(Hasten, WithoutACommandSaysHowItIsUsed) {
  const auto result = hasten_with({});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, kHelp);
}

TEST(Hasten, HelpIsACommandToo) {
  EXPECT_EQ(hasten_with({"help"}).out, kHelp);
  EXPECT_EQ(hasten_with({"help", "ps"}).out, hasten_with({"ps", "--help"}).out);
  EXPECT_EQ(hasten_with({"help", "lanch"}).err, "hasten: unknown command 'lanch', did you mean 'launch'?\n");
  EXPECT_EQ(hasten_with({"help", "ps", "env"}).exit_code, 2);
}

TEST(Hasten, SaysItsVersion) {
  EXPECT_EQ(hasten_with({"--version"}).out, std::string("hasten ") + version() + "\n");
}

TEST(Hasten, AnUnknownCommandOrOptionIsAnsweredWithTheNearest) {
  EXPECT_EQ(hasten_with({"lanch", "-n", "2"}).err, "hasten: unknown command 'lanch', did you mean 'launch'?\n");
  EXPECT_EQ(hasten_with({"--verson"}).err, "hasten: unknown option '--verson', did you mean '--version'?\n");
  EXPECT_EQ(hasten_with({"dance"}).err, "hasten: unknown command 'dance'; see hasten --help\n");
  EXPECT_EQ(hasten_with({"-n", "2", "./train"}).err, "hasten: unknown option '-n'; hasten launch starts programs\n");
  EXPECT_EQ(hasten_with({"./train"}).err, "hasten: unknown command './train'; hasten launch starts programs\n");
  EXPECT_EQ(hasten_with({"dance"}).exit_code, 2);
}

// Every "-x" and "--name" that begins a line of a help text, or follows a short form there.
void add_flags(const std::string& command, const std::string& help, std::set<std::string>& flags) {
  const std::regex flag("\\n  (-[A-Za-z])?(, )?(--[A-Za-z][A-Za-z0-9_-]*)?");
  for (auto found = std::sregex_iterator(help.begin(), help.end(), flag); found != std::sregex_iterator(); ++found) {
    for (const int part : {1, 3}) {
      if ((*found)[part].matched) flags.insert(command + " " + (*found)[part].str());
    }
  }
}

TEST(Hasten, TheFlagsAreThoseOfTheFrozenFile) {
  std::set<std::string> flags, frozen;
  std::ifstream file(HASTEN_SOURCE_DIR "/tests/cli/flags.txt");
  for (std::string line; std::getline(file, line);) frozen.insert(line);

  add_flags("hasten", kHelp, flags);
  for (const char* command : {"launch",        "ps",      "watch",        "stacks",     "trace",
                              "config",        "env",     "test",         "tpu-config", "estimate-memory",
                              "merge-weights", "convert", "zero-to-fp32", "checkpoint", "track",
                              "board",         "plan",    "verify",       "to-fsdp2",   "completion"}) {
    add_flags(std::string("hasten ") + command, hasten_with({command, "--help"}).out, flags);
  }

  EXPECT_EQ(flags, frozen) << "If the change is meant, change tests/cli/flags.txt and CHANGELOG.md with it.";
}

}  // namespace
}  // namespace hasten
