// `hasten tpu-config`: runs commands on all machines of a TPU pod through gcloud, as `accelerate tpu-config`
// does.
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/launch/config/config_file.h"
#include "hasten/launch/config/config_value.h"
#include "hasten/launch/options/command_line.h"
#include "hasten/launch/workers/program.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

using core::Value;
using launcher::CommandLine;

const HelpText kTpuConfigHelp = {
    "hasten tpu-config [OPTIONS]",
    "Runs commands on every machine of a TPU pod with gcloud, before hasten launch is used there.", ""};

// The options that the configuration file can give as well.
struct Pod {
  std::string name, zone, command_file;
  std::vector<std::string> commands;
};

std::string text_in(const launcher::Config& config, const char* key) {
  const Value* value = config.values.find(key);
  return value == nullptr ? "" : launcher::python_text(*value);
}

Pod pod_of(const CommandLine& line, const std::optional<launcher::Config>& config) {
  Pod pod{line.text("tpu_name"), line.text("tpu_zone"), line.text("command_file"), {}};
  if (line.has("command")) pod.commands = line.options.at("command").values;
  if (!config) return pod;
  if (pod.command_file.empty() && pod.commands.empty()) pod.command_file = text_in(*config, "command_file");
  if (const Value* value = config->values.find("commands"); value && pod.commands.empty()) {
    for (const Value& command : value->as_list()) {
      pod.commands.push_back(launcher::python_text(command));
    }
  }
  if (pod.name.empty()) pod.name = text_in(*config, "tpu_name");
  if (pod.zone.empty()) pod.zone = text_in(*config, "tpu_zone");
  return pod;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw UsageError({"tpu-config"}, "the command file '", path, "' cannot be read", file ? ": it is a folder" : "",
                     ". Check --command_file.");
  }
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
  }
  if (lines.empty()) {
    throw UsageError({"tpu-config"}, "the command file '", path, "' has no command; expected one a line. ",
                     "Check --command_file.");
  }
  return lines;
}

// The requirements for pip.
std::string package(const std::string& version) {
  if (version == "dev") return "git+https://github.com/huggingface/accelerate.git";
  if (version.empty() || version == "latest") return "accelerate -U";
  return "accelerate==" + version;
}

void check(const Pod& pod) {
  std::vector<std::string> problems;
  if (pod.commands.empty() && pod.command_file.empty())
    problems.push_back("no command is given (--command, --command_file)");
  if (pod.name.empty()) problems.push_back("the TPU has no name (--tpu_name)");
  if (pod.zone.empty()) problems.push_back("the TPU has no zone (--tpu_zone)");
  if (!problems.empty()) launcher::refuse("tpu-config", problems, "Give it here or in the configuration file.");
}

std::vector<std::string> gcloud(const CommandLine& line, const Pod& pod) {
  std::vector<std::string> steps = {"cd /usr/share"};
  if (line.has("install_accelerate")) steps.push_back("pip install " + package(line.text("accelerate_version")));
  const std::vector<std::string> requested = pod.command_file.empty() ? pod.commands : lines_of(pod.command_file);
  steps.insert(steps.end(), requested.begin(), requested.end());
  std::vector<std::string> words = {"gcloud"};
  if (line.has("use_alpha")) words.push_back("alpha");
  const std::vector<std::string> rest = {"compute", "tpus",      "tpu-vm",          "ssh",      pod.name, "--zone",
                                         pod.zone,  "--command", join(steps, "; "), "--worker", "all"};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

int run(const std::vector<std::string>& words) {
  const Environment environment = Environment::current();
  const launcher::Program program = launcher::find_program(words, environment, launcher::ProgramKind::kDirect);
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) _exit(launcher::execute(program, environment));
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  if (status == 0) std::cout << "The pod is set up.\n";
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int tpu_config(const std::vector<std::string>& words) {
  const CommandLine line = read_options("tpu-config", tpu_config_options(), words);
  if (line.help) return std::cout << help_of(kTpuConfigHelp, tpu_config_options(), colours_wanted()), 0;
  const std::optional<launcher::Config> config = chosen_config(line, Environment::current());
  const Pod pod = pod_of(line, config);
  check(pod);
  const std::vector<std::string> command = gcloud(line, pod);
  if (!line.has("debug")) return run(command);
  std::cout << "Running " << join(command, " ") << "\n";
  return 0;
}

}  // namespace hasten::cli
