// `hasten completion bash|zsh`: the words that a shell offers, made from the option tables, so that they are
// those of this very binary.
#include <iostream>

#include "commands.h"
#include "hasten/core/text.h"
#include "help.h"
#include "options.h"
#include "trace.h"
#include "verify.h"
#include "weights_options.h"

namespace hasten::cli {
namespace {

const HelpText kCompletionHelp = {
    "hasten completion bash|zsh", "Prints the completion of a shell.",
    "bash: source <(hasten completion bash). zsh: source <(hasten completion zsh), after compinit."};

struct Words {
  const char* command;
  const std::vector<launcher::OptionGroup>& options;
  const char* further;  // words that are no options
};

std::vector<Words> completed_commands() {
  return {{"launch", launcher::launch_options(), ""},
          {"ps", no_options(), ""},
          {"watch", watch_options(), ""},
          {"stacks", stacks_options(), ""},
          {"trace", trace_options(), ""},
          {"config", config_options(), "default update"},
          {"env", env_options(), ""},
          {"test", test_options(), ""},
          {"tpu-config", tpu_config_options(), ""},
          {"estimate-memory", estimate_memory_options(), ""},
          {"merge-weights", merge_weights_options(), ""},
          {"convert", convert_options(), ""},
          {"zero-to-fp32", zero_to_fp32_options(), ""},
          {"checkpoint", checkpoint_options(), "list show verify diff prune repair"},
          {"track", track_options(), "status recover sync"},
          {"board", board_options(), ""},
          {"plan", plan_options(), ""},
          {"verify", verify_options(), ""},
          {"to-fsdp2", to_fsdp2_options(), ""},
          {"completion", no_options(), "bash zsh"}};
}

std::string options_of(const Words& words) {
  std::string line = words.further;
  for (const std::string& name : launcher::option_names(words.options)) line.append(" --").append(name);
  return line.append(" --help");
}

// After an option with a closed set, its values; a function of the shell's case statement.
std::string values_of(const Words& words) {
  std::string cases;
  for (const launcher::OptionGroup& group : words.options) {
    for (const launcher::Option& option : group.options) {
      if (option.choices.empty()) continue;
      cases += text("    ", words.command, ":--", option.name, ") words=\"", option.choices, "\" ;;\n");
    }
  }
  return cases;
}

std::string bash() {
  std::string names, options, values;
  for (const Words& words : completed_commands()) {
    names.append(names.empty() ? "" : " ").append(words.command);
    options += text("    ", words.command, ") words=\"", options_of(words), "\" ;;\n");
    values += values_of(words);
  }
  return text(
      "_hasten() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W \"",
      names,
      " --help --version\" -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]}:$before in\n",
      values,
      "  esac\n"
      "  [[ -n $words ]] || case ${COMP_WORDS[1]} in\n",
      options,
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "}\n"
      "complete -o default -F _hasten hasten\n");
}

}  // namespace

int completion(const std::vector<std::string>& words) {
  const launcher::CommandLine line = read_options("completion", no_options(), words, 1);
  if (line.help) return std::cout << help_of(kCompletionHelp, no_options(), colours_wanted()), 0;
  const std::string shell = line.rest.empty() ? "" : line.rest.front();
  if (shell != "bash" && shell != "zsh") {
    const std::string guess = did_you_mean(shell, {"bash", "zsh"});
    const std::string what = shell.empty() ? "no shell is named; expected bash or zsh"
                                           : text("'", shell, "' is neither bash nor zsh", guess);
    launcher::refuse("completion", {what}, "See hasten completion --help.");
  }
  if (shell == "zsh") std::cout << "autoload -U +X bashcompinit && bashcompinit\n";
  std::cout << bash();
  return 0;
}

}  // namespace hasten::cli
