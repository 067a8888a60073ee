// `hasten launch`: reads the options and hands over to launcher::run_local.
//
// Options are known under torchrun's and Accelerate's names, with underscores or dashes. They end where the
// program begins; what follows is the program's, whatever it looks like. The set of options is frozen in
// tests/cli/flags.txt.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/launch/local_run.h"
#include "hasten/launch/program.h"
#include "hasten/launch/signals.h"

namespace hasten::cli {
namespace {

constexpr int kMaxProcesses = 1 << 20;
constexpr const char* kUsage = "Usage: hasten launch [OPTIONS] PROGRAM [ARGUMENTS]";

// CLI11's help, but the usage line names the program, which is no option of ours.
class Format : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override { return text(kUsage, "\n"); }
};

struct LaunchCommand {
  std::optional<int> num_processes;
  std::optional<int> num_per_machine;
  LaunchOptions options;
  std::vector<std::string> program;
};

// "--num_processes,--num-processes"
std::string both_spellings(const std::string& name) {
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return "--" + name + (dashed == name ? "" : ",--" + dashed);
}

CLI::Validator whole_number(int least, int most) {
  return CLI::Validator(
      [=](std::string& word) {
        int number = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        const bool good =
            error == std::errc() && end == word.data() + word.size() && number >= least && number <= most;
        return good ? "" : text("'", word, "' is not a whole number between ", least, " and ", most);
      },
      "");
}

CLI::Validator seconds() {
  return CLI::Validator(
      [](std::string& word) {
        double number = -1;
        const bool good = CLI::detail::lexical_cast(word, number) && number >= 0 && number <= 1e9;
        return good ? "" : text("'", word, "' is not a number of seconds between 0 and 1e9");
      },
      "");
}

// Output, restarts and signals, under torchrun's names.
void add_supervision_options(CLI::App& app, LaunchOptions& options) {
  app.add_option(both_spellings("log_dir"), options.log_dir, "Folder for log files")->type_name("FOLDER");
  app.add_option(
         both_spellings("redirects"), options.redirects,
         "Streams that go to log files: 0 none, 1 output, 2 error, 3 both, or by local rank (0:3,1:2)")
      ->type_name("STREAMS");
  app.add_option(both_spellings("tee"), options.tee, "Streams that go to log files and are shown")
      ->type_name("STREAMS");
  app.add_option(both_spellings("local_ranks_filter"), options.local_ranks_filter,
                 "Local ranks whose output is shown (0,2; default all)")
      ->type_name("RANKS")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option(both_spellings("max_restarts"), options.max_restarts,
                 "How often failed workers are started again (default 0)")
      ->type_name("N")
      ->check(whole_number(0, kMaxProcesses));
  app.add_option(both_spellings("monitor_interval"), options.monitor_interval_s,
                 "Time before the first restart, doubled with each (default 0.1)")
      ->type_name("SECONDS")
      ->check(seconds());
  app.add_option_function<std::string>(
         both_spellings("signals_to_handle"),
         [&options](const std::string& names) { options.signals_to_handle = launcher::signals_of(names); },
         "Signals handed on to the workers (default SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1)")
      ->type_name("SIGNALS");
  app.add_flag(both_spellings("prefix_ranks"), options.prefix_ranks, "[rank 3] before each line of output");
}

void add_options(CLI::App& app, LaunchCommand& command) {
  app.add_option("-n," + both_spellings("num_processes"), command.num_processes,
                 "Processes in all (default 1)")
      ->type_name("N")
      ->check(whole_number(1, kMaxProcesses));
  app.add_option(both_spellings("nproc_per_node"), command.num_per_machine,
                 "Processes per machine; on one machine the same as -n")
      ->type_name("N")
      ->check(whole_number(1, kMaxProcesses));
  app.add_option(both_spellings("master_addr"), command.options.master_addr,
                 "Address where rank 0 opens the store (default 127.0.0.1)")
      ->type_name("ADDRESS");
  app.add_option(both_spellings("master_port"), command.options.master_port,
                 "Its port (default 0: one that is free)")
      ->type_name("PORT")
      ->check(whole_number(0, 65535));
  app.add_option(both_spellings("shutdown_timeout"), command.options.shutdown_timeout_s,
                 "Time between SIGTERM and SIGKILL (default TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)")
      ->type_name("SECONDS")
      ->check(seconds());
  add_supervision_options(app, command.options);
}

[[noreturn]] void refuse_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string guess = did_you_mean(word.substr(0, word.find('=')), names);
  throw UsageError({"launch"}, "unknown option '", word, "'", guess.empty() ? "." : guess,
                   " See hasten launch --help.");
}

// The number of processes: one of the two options, or both if they agree.
int num_processes(const LaunchCommand& command) {
  const auto& all = command.num_processes;
  const auto& per_machine = command.num_per_machine;
  if (all && per_machine && *all != *per_machine) {
    throw UsageError({"launch"}, "--nproc_per_node ", *per_machine, " * 1 machine = ", *per_machine,
                     ", but --num_processes is ", *all, ". Give one of the two, or the same number.");
  }
  return all ? *all : per_machine.value_or(1);
}

// Everything from the first word that is neither an option nor an option's value.
std::vector<std::string> program_words(const CLI::App& app) {
  std::vector<std::string> words = app.remaining();
  if (!words.empty() && words.front() == "--") {
    words.erase(words.begin());
  } else if (!words.empty() && words.front().starts_with("-")) {
    refuse_option(app, words.front());
  }
  if (words.empty()) {
    throw UsageError({"launch"}, "no program is given. ", kUsage);
  }
  return words;
}

}  // namespace

int launch(const std::vector<std::string>& words) {
  LaunchCommand command;
  CLI::App app("Runs PROGRAM (or SCRIPT.py, with python3) in several processes on this machine.",
               "hasten launch");
  app.formatter(std::make_shared<Format>());
  app.prefix_command();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_options(app, command);
  std::vector<std::string> last_first(words.rbegin(), words.rend());
  try {
    app.parse(last_first);
    command.program = program_words(app);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string_view message = error.what();  // "--num_processes: …"
    throw UsageError({"launch"}, message.substr(0, message.find(':')),
                     " needs a value. See hasten launch --help.");
  } catch (const CLI::ParseError& error) {
    throw UsageError({"launch"}, error.what(), ". See hasten launch --help.");
  }
  const Environment environment = Environment::current();
  const launcher::Program program = launcher::find_program(command.program, environment);
  return launcher::run_local(num_processes(command), command.options, environment,
                             [&](const Environment& of_worker) { return execute(program, of_worker); });
}

}  // namespace hasten::cli
