// `hasten config`: asks questions and writes Accelerate's configuration file. `config default` writes one without
// questions. `config update` converts an old one to today's form.
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/launch/config/basic_config.h"
#include "help.h"
#include "interview.h"
#include "options.h"

namespace hasten::cli {
namespace {

using launcher::CommandLine;

const HelpText kConfigHelp = {
    "hasten config [default|update] [OPTIONS]",
    "Writes the configuration that hasten launch (and accelerate launch) read. Without a further "
    "word it asks questions; default asks nothing; update brings an old file into today's form.",
    "The default file is accelerate/default_config.yaml in HF_HOME, else in huggingface of "
    "XDG_CACHE_HOME, else in ~/.cache/huggingface."};

int ask(const std::string& path, const std::string& precision) {
  if (!precision.empty()) launcher::basic_config(precision, 0);  // refuses other words before the first question
  Asker asker;
  const core::Value answers = interview(asker, precision);
  launcher::save_config(answers, path);
  // Reads the file back: open answers are filled in, and the file is valid.
  launcher::save_config(launcher::load_config(path).values, path);
  std::cout << "The configuration is in " << path << ".\n";
  return 0;
}

// As Accelerate's, always JSON, which YAML readers take.
int write_default(const CommandLine& line, const std::string& path) {
  const std::string precision = line.has("mixed_precision") ? line.text("mixed_precision") : "no";
  if (!write_basic_config({.mixed_precision = precision, .path = path})) {
    throw UsageError({"config"}, "'", path, "' exists already. Remove it, use hasten config, or name another file ",
                     "with --config_file.");
  }
  std::cout << "The configuration is in " << path << ".\n";
  return 0;
}

int update(const std::string& path) {
  launcher::save_config(launcher::load_config(path).values, path);
  std::cout << "The configuration in " << path << " is up to date.\n";
  return 0;
}

}  // namespace

int config(const std::vector<std::string>& words) {
  const CommandLine line = read_options("config", config_options(), words, 1);
  if (line.help) return std::cout << help_of(kConfigHelp, config_options(), colours_wanted()), 0;
  const std::string path =
      line.has("config_file") ? line.text("config_file") : launcher::default_config_path(Environment::current());
  const std::string what = line.rest.empty() ? "" : line.rest.front();
  if (what.empty()) return ask(path, line.has("mixed_precision") ? line.text("mixed_precision") : "");
  if (what == "default") return write_default(line, path);
  if (what == "update" && line.has("mixed_precision")) {
    throw UsageError({"config"}, "update takes the precision from the file, so --mixed_precision ",
                     line.text("mixed_precision"),
                     " has no place. Change the file, or write it anew with hasten config.");
  }
  if (what == "update") return update(path);
  throw UsageError({"config"}, "unknown word '", what, "'", guess_end(what, {"default", "update"}),
                   " See hasten config --help.");
}

}  // namespace hasten::cli
