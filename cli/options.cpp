// The tables of options.h.
#include "options.h"

#include <algorithm>
#include <filesystem>

#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::cli {
namespace {

using launcher::Option;
using launcher::OptionGroup;
using enum launcher::OptionKind;

Option config_file() {
  return {.name = "config_file", .value = "FILE", .help = "The configuration file instead of the default one"};
}

}  // namespace

const std::vector<OptionGroup>& config_options() {
  static const std::vector<OptionGroup> groups = {{"Options",
                                                   "",
                                                   {config_file(),
                                                    {.name = "mixed_precision",
                                                     .kind = kChoice,
                                                     .choices = "no fp16 bf16 fp8",
                                                     .help = "For default: what to compute in"}}}};
  return groups;
}

const std::vector<OptionGroup>& env_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {config_file(), {.name = "json", .kind = kSwitch, .peers = launcher::kHasten, .help = "As JSON"}}}};
  return groups;
}

const std::vector<OptionGroup>& test_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {config_file(),
        {.name = "num_processes",
         .letter = 'n',
         .kind = kInteger,
         .least = 1,
         .most = 1 << 20,
         .help = "Processes in all"},
        {.name = "cpu", .kind = kSwitch, .peers = launcher::kHasten, .help = "Stay on the CPU"}}}};
  return groups;
}

const std::vector<OptionGroup>& tpu_config_options() {
  static const std::vector<OptionGroup> groups = {
      {"TPU",
       "",
       {config_file(),
        {.name = "tpu_name", .value = "NAME", .help = "The TPU"},
        {.name = "tpu_zone", .value = "NAME", .help = "Its zone"},
        {.name = "use_alpha", .kind = kSwitch, .help = "gcloud alpha"}}},
      {"Commands",
       "",
       {{.name = "command", .kind = kList, .value = "COMMAND", .help = "A command to run; may be given several times"},
        {.name = "command_file", .value = "FILE", .help = "A file with a command a line"},
        {.name = "install_accelerate", .kind = kSwitch, .help = "Install Accelerate first"},
        {.name = "accelerate_version",
         .fallback = "latest",
         .value = "VERSION",
         .help = "Which: a number, latest or dev"},
        {.name = "debug", .kind = kSwitch, .help = "Print the command, run nothing"}}}};
  return groups;
}

const std::vector<OptionGroup>& estimate_memory_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "dtypes",
         .kind = kList,
         .value = "DTYPE",
         .help = "float32, float16, bfloat16, int8 or int4, with commas; the default is all but bfloat16"},
        {.name = "map",
         .peers = launcher::kHasten,
         .value = "SIZES",
         .help = "Print a device map, too: limits of accelerators and, last, of the CPU (24GiB,64GiB)"},
        {.name = "json", .kind = kSwitch, .peers = launcher::kHasten, .help = "As JSON"},
        {.name = "library_name", .value = "NAME", .help = "Not used: headers say what is there"},
        {.name = "trust_remote_code", .kind = kSwitch, .help = "Not used: no code is run"}}}};
  return groups;
}

const std::vector<OptionGroup>& watch_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "once", .kind = kSwitch, .peers = launcher::kHasten, .help = "Print one table, after a second"}}}};
  return groups;
}

const std::vector<OptionGroup>& stacks_options() {
  static const std::vector<OptionGroup> groups = {{"Options",
                                                   "",
                                                   {{.name = "rank",
                                                     .kind = kInteger,
                                                     .peers = launcher::kHasten,
                                                     .least = 0,
                                                     .most = 1 << 20,
                                                     .help = "Of this rank only"}}}};
  return groups;
}

const std::vector<OptionGroup>& track_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "to",
         .peers = launcher::kHasten,
         .value = "NAME",
         .help = "For sync: the tracker, such as wandb or tensorboard"},
        {.name = "options",
         .peers = launcher::kHasten,
         .value = "JSON",
         .help = "For sync: the tracker's options, as init_kwargs has them"},
        {.name = "timeout",
         .kind = kReal,
         .peers = launcher::kHasten,
         .fallback = "600",
         .least = 0.1,
         .most = 1e6,
         .help = "For recover and sync: seconds for each run"},
        {.name = "drain_timeout",
         .kind = kReal,
         .peers = launcher::kHasten,
         .fallback = "30",
         .least = 0,
         .most = 1e6,
         .help = "For follow, which trainings start: seconds after the training's end"}}}};
  return groups;
}

const std::vector<OptionGroup>& board_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "output",
         .letter = 'o',
         .peers = launcher::kHasten,
         .value = "FILE",
         .help = "The page; default: board.html in the (first) folder"},
        {.name = "serve",
         .kind = kSwitch,
         .peers = launcher::kHasten,
         .help = "Serve the page instead of writing it, and follow runs that go on"},
        {.name = "bind",
         .peers = launcher::kHasten,
         .fallback = "127.0.0.1",
         .value = "ADDRESS",
         .help = "For --serve: the address to listen at. All who reach it see the runs"},
        {.name = "port",
         .kind = kInteger,
         .peers = launcher::kHasten,
         .fallback = "6007",
         .least = 0,
         .most = 65535,
         .help = "For --serve; 0: any"}}}};
  return groups;
}

const std::vector<OptionGroup>& to_fsdp2_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {config_file(),
        {.name = "overwrite", .kind = kSwitch, .help = "Write over the file"},
        {.name = "output_file", .value = "FILE", .help = "Write to this file"}}}};
  return groups;
}

const std::vector<OptionGroup>& no_options() {
  static const std::vector<OptionGroup> none;
  return none;
}

launcher::CommandLine read_options(const std::string& command, const std::vector<OptionGroup>& options,
                                   const std::vector<std::string>& words, size_t most_words) {
  // Options may come before and after the command's own words.
  launcher::CommandLine line = launcher::read_command_line(options, words);
  std::vector<std::string> own;
  while (!line.rest.empty() && !line.help) {
    own.push_back(line.rest.front());
    launcher::CommandLine more = launcher::read_command_line(options, {line.rest.begin() + 1, line.rest.end()});
    line.options.merge(more.options);
    line.problems.insert(line.problems.end(), more.problems.begin(), more.problems.end());
    line.rest = std::move(more.rest);
    line.help = more.help;
  }
  line.rest = std::move(own);
  if (line.help) return line;
  if (line.rest.size() > most_words) line.problems.push_back(text("unexpected word '", line.rest[most_words], "'"));
  if (!line.problems.empty()) launcher::refuse(command, line.problems, text("See hasten ", command, " --help."));
  return line;
}

void refuse_options_of_others(const std::string& command, const launcher::CommandLine& line, const std::string& action,
                              const std::vector<std::pair<std::string, std::vector<std::string>>>& owners) {
  for (const auto& [option, actions] : owners) {
    if (!line.has(option) || std::find(actions.begin(), actions.end(), action) != actions.end()) continue;
    throw UsageError(Origin{command}, "--", option, " is for ", join(actions, " and "), ", not for ", action,
                     ". Leave it out; see hasten ", command, " --help.");
  }
}

std::optional<launcher::Config> chosen_config(const launcher::CommandLine& line, const Environment& environment) {
  if (line.has("config_file")) return launcher::load_config(line.text("config_file"));
  const std::string path = launcher::default_config_path(environment);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return launcher::load_config(path);
}

}  // namespace hasten::cli
