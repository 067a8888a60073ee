// `hasten launch`: from the command line, the configuration file and the environment to a run.
//
// The steps are the launch room's, each a pure function: words (command_line.h), settings (settings.h), the
// plan (run_plan.h), the variables (compose_environment.h). The set of options is frozen in tests/cli/flags.txt.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "commands.h"
#include "explain.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/launch/base/signals.h"
#include "hasten/launch/output/stream_choice.h"
#include "hasten/launch/plan/affinity.h"
#include "hasten/launch/plan/compose_environment.h"
#include "hasten/launch/plan/missing_devices.h"
#include "hasten/launch/plan/unknown_words.h"
#include "hasten/launch/remote/remote_run.h"
#include "hasten/launch/run/elastic_run.h"
#include "hasten/launch/run/local_run.h"
#include "hasten/launch/workers/program.h"
#include "help.h"
#include "launch_limits.h"
#include "options.h"

namespace hasten::cli {
namespace {

using launcher::CommandLine;
using launcher::LaunchSettings;
using launcher::Machine;
using launcher::Program;
using launcher::ProgramKind;
using launcher::RunPlan;

const HelpText kLaunchHelp = {
    "hasten launch [OPTIONS] PROGRAM [ARGUMENTS]",
    "Runs PROGRAM (or SCRIPT.py, with python3) in several processes. Options are those of torchrun and of "
    "accelerate "
    "launch; they end where the program begins, and may be written with underscores or dashes.",
    "What is not given comes from the configuration file (hasten config), then the environment, then the "
    "cluster, then the default; "
    "--explain says which."};

ProgramKind program_kind(const LaunchSettings& settings) {
  if (settings.on("run_path")) return ProgramKind::kScript;
  if (settings.on("module")) return ProgramKind::kModule;
  return settings.on("no_python") ? ProgramKind::kDirect : ProgramKind::kByName;
}

// The run id of --standalone.
std::string made_up_name() {
  std::ifstream file("/proc/sys/kernel/random/uuid");
  std::string name;
  std::getline(file, name);
  return name;
}

std::vector<std::set<int>> bindings(const LaunchSettings& settings, const Machine& machine, const RunPlan& plan) {
  const auto mode = settings.text("numa_binding");
  return mode ? launcher::bound_cpus(machine, *mode, plan.num_local_processes) : std::vector<std::set<int>>();
}

LaunchOptions options_of(const LaunchSettings& settings, const RunPlan& plan) {
  LaunchOptions options{
      .num_machines = plan.max_machines,
      .machine_rank = plan.machine_rank,
      .workers_of_machines = plan.processes_of_machines,
      .join_timeout_s = plan.rdzv_conf.settings.join_timeout.count(),
      .run = plan.run,
      .shutdown_timeout_s = settings.real("shutdown_timeout"),
      .monitor_interval_s = settings.real("monitor_interval").value_or(0.1),
      .log_dir = settings.text("log_dir").value_or(""),
      .redirects = settings.text("redirects").value_or(""),
      .tee = settings.text("tee").value_or(""),
      .duplicate_stdout_filters = launcher::read_words(settings.text("duplicate_stdout_filters").value_or("")),
      .duplicate_stderr_filters = launcher::read_words(settings.text("duplicate_stderr_filters").value_or("")),
      .local_ranks_filter = *launcher::read_local_ranks(settings.text("local_ranks_filter").value_or("")),
      .prefix_ranks = settings.on("prefix_ranks")};
  if (settings.of("signals_to_handle").source != launcher::Source::kDefault) {
    options.signals_to_handle = launcher::signals_of(*settings.text("signals_to_handle"));
  }
  return options;
}

launcher::ElasticOptions elastic_options(const LaunchSettings& settings, const RunPlan& plan) {
  launcher::ElasticOptions options{.settings = plan.rdzv_conf.settings,
                                   .backend = plan.rdzv_backend,
                                   .etcd = plan.rdzv_conf.etcd,
                                   .local_addr = settings.text("local_addr").value_or("")};
  options.settings.min_nodes = plan.min_machines;
  options.settings.max_nodes = plan.max_machines;
  if (!plan.rdzv_endpoint.empty()) options.endpoint = plan.rdzv_endpoint;
  return options;
}

int run_elsewhere(const launcher::RemotePlan& plan, const LaunchSettings& settings, const Environment& environment) {
  if (!settings.problems().empty()) launcher::refuse("launch", settings.problems(), "See hasten launch --help.");
  if (plan.words.back() == "--") throw UsageError({"launch"}, "no program is given. Usage: ", kLaunchHelp.usage);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::chrono::duration<double> shutdown_timeout(settings.real("shutdown_timeout").value_or(30));
  return launcher::run_remote(plan, self, environment, shutdown_timeout);
}

int run(const LaunchSettings& settings, RunPlan plan, const Machine& machine, const std::vector<std::string>& words) {
  const Environment environment = Environment::current();
  std::vector<std::string> problems = launcher::missing_devices(settings, machine, environment);
  for (std::string& word : launcher::unknown_words(settings)) problems.push_back(std::move(word));
  if (!problems.empty()) launcher::refuse("launch", problems, "See hasten launch --help.");
  for (const std::string& note : launcher::options_without_effect(settings)) std::cerr << "[launch] " << note << "\n";
  if (plan.run.run_id.empty()) plan.run.run_id = made_up_name();
  const Program program = launcher::find_program(words, environment, program_kind(settings));
  const std::vector<std::set<int>> cpus = bindings(settings, machine, plan);
  const auto work = [&](const launcher::WorkerPlace& place, const Environment& of_worker) {
    if (!cpus.empty()) launcher::bind_to(cpus[static_cast<size_t>(place.local_rank)]);
    const auto arguments = launcher::worker_arguments(settings, place);
    return launcher::execute(launcher::with_arguments(program, arguments), of_worker);
  };
  const launcher::EnvironmentPlan of_workers{.inherited = environment,
                                             .launch = launcher::LaunchFacts{settings, plan, machine}};
  LaunchOptions options = options_of(settings, plan);
  if (!plan.is_elastic()) return launcher::run_local(plan.num_local_processes, options, of_workers, work);
  options.num_machines = 1;  // known only when all have met
  options.machine_rank = 0;
  return launcher::run_elastic(plan.num_local_processes, options, elastic_options(settings, plan), of_workers, work);
}

// `--explain all`: the word behind the options is no program then. Returns whether it was there.
bool take_all(CommandLine& line) {
  if (!line.has("explain") || line.rest.empty() || line.rest.front() != "all") return false;
  line.rest.erase(line.rest.begin());
  return true;
}

// `task` comes from another machine's launcher; null at the user's own command.
int launch_as(const std::vector<std::string>& words, const launcher::RemoteTask* task) {
  CommandLine line = launcher::read_command_line(launcher::launch_options(), words);
  const bool explain_all = take_all(line);
  if (line.help) {
    std::cout << help_of(kLaunchHelp, launcher::launch_options(), colours_wanted());
    return 0;
  }
  const Environment environment = Environment::current();
  const std::optional<launcher::Config> config = chosen_config(line, environment);
  LaunchSettings settings(line, config ? &*config : nullptr, environment);
  if (task != nullptr) settings.came_from_file(task->from_file);
  const launcher::Cluster cluster = launcher::find_cluster(environment);
  settings.take(cluster);
  if (line.has("explain")) std::cout << explained(settings, explain_all) << std::flush;
  if (task == nullptr) {
    const auto remote = launcher::plan_remote(settings, cluster, line.rest, environment, core::read_file);
    if (remote) return line.has("explain") ? 0 : run_elsewhere(*remote, settings, environment);
  }
  const Machine machine = launcher::this_machine(environment);
  const RunPlan plan = launcher::plan_run(settings, machine, what_cannot_be_done(settings));
  if (line.has("explain")) {
    std::cout << explained_devices(settings, machine, plan.num_local_processes, environment);
    return 0;
  }
  if (line.rest.empty()) throw UsageError({"launch"}, "no program is given. Usage: ", kLaunchHelp.usage);
  return run(settings, plan, machine, line.rest);
}

}  // namespace

int launch(const std::vector<std::string>& words) {
  return launch_as(words, nullptr);
}

int launch_here(const launcher::RemoteTask& task) {
  return launch_as(task.words, &task);
}

}  // namespace hasten::cli
