// See remote_plan.h.
#include "hasten/launch/remote/remote_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/shell.h"
#include "launch/base/whole_number.h"

namespace hasten::launcher {
namespace {

using nlohmann::json;

std::vector<std::string> blank_separated(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Returns the value of a setting with two names, by the stronger source; "" if neither has a value.
std::string either(const LaunchSettings& settings, const char* one, const char* other) {
  const Setting& a = settings.of(one);
  const Setting& b = settings.of(other);
  const Setting& stronger = b.source > a.source ? b : a;
  return stronger.values.empty() ? "" : stronger.values.back();
}

bool is_given(const LaunchSettings& settings, const char* one, const char* other) {
  return std::max(settings.of(one).source, settings.of(other).source) > Source::kCluster;
}

// The file that names the machines; Accelerate's --mpirun_hostfile is one that chooses its launcher, too.
// Launchers that were started on each machine already start nowhere else because of a file that all of them
// read.
struct HostfileChoice {
  std::string path = {};  // "" if there is none
  bool for_mpirun = false;
};

HostfileChoice chosen_hostfile(const LaunchSettings& settings, const Cluster& cluster) {
  const Source other = std::max(settings.of("hostfile").source, settings.of("deepspeed_hostfile").source);
  const Setting& mpirun = settings.of("mpirun_hostfile");
  if (cluster.started_on_each && std::max(other, mpirun.source) < Source::kOption) return {};
  if (!mpirun.values.empty() && mpirun.source > other) return {mpirun.values.back(), true};
  return {either(settings, "hostfile", "deepspeed_hostfile"), false};
}

RemoteLauncher launcher_named(const std::string& name, const Cluster& cluster) {
  if (name.empty()) return cluster.name == "Slurm" ? RemoteLauncher::kSlurm : RemoteLauncher::kSsh;
  if (name == "ssh") return RemoteLauncher::kSsh;
  if (name == "pdsh") return RemoteLauncher::kPdsh;
  if (name == "openmpi") return RemoteLauncher::kOpenMpi;
  if (name == "slurm") return RemoteLauncher::kSlurm;
  throw UsageError({"launch"}, "--deepspeed_multinode_launcher ", name,
                   ": hasten starts itself through ssh, pdsh, openmpi or slurm. Choose one of them (--launcher).");
}

// The job's machines, if this command is to start itself on them.
std::vector<Host> hosts_of_job(const LaunchSettings& settings, const Cluster& cluster, bool launcher_given) {
  if (cluster.started_on_each || is_given(settings, "machine_rank", "node_rank")) return {};
  const std::string requested = either(settings, "num_machines", "nnodes");
  const bool several = !requested.empty() && requested != "1" && requested.find(':') == std::string::npos;
  if (launcher_given && cluster.hosts.empty()) {
    throw UsageError({"launch"}, "--launcher needs machines to start on, and there is no job that names them. ",
                     "Give --hostfile.");
  }
  if (cluster.hosts.size() < 2 || (!launcher_given && !several)) return {};
  std::vector<Host> hosts = cluster.hosts;
  if (!several) return hosts;
  const auto number = whole_number(requested);
  if (!number || *number < 1)
    throw UsageError({"launch"}, "--nnodes: '", requested, "' is neither a number of machines nor MIN:MAX.");
  if (static_cast<size_t>(*number) > hosts.size()) {
    throw UsageError({"launch"}, "--nnodes ", requested, ": the job has ", count_text(hosts.size(), "machine"), " (",
                     cluster.hosts_origin, ").");
  }
  hosts.resize(static_cast<size_t>(*number));
  return hosts;
}

// These are for this command alone, or are set anew for each machine.
bool stays_here(std::string_view name) {
  static const std::set<std::string_view> names = {"hostfile",
                                                   "include",
                                                   "exclude",
                                                   "launcher",
                                                   "launcher_args",
                                                   "deepspeed_hostfile",
                                                   "deepspeed_inclusion_filter",
                                                   "deepspeed_exclusion_filter",
                                                   "deepspeed_multinode_launcher",
                                                   "num_machines",
                                                   "nnodes",
                                                   "machine_rank",
                                                   "node_rank",
                                                   "main_process_ip",
                                                   "master_addr",
                                                   "main_process_port",
                                                   "master_port",
                                                   "config_file",
                                                   "explain",
                                                   "mpirun_hostfile"};
  return names.count(name) != 0;
}

// The user's settings, by option or file, as options. The names of the latter go to `from_file`.
std::vector<std::string> options_again(const LaunchSettings& settings, std::vector<std::string>& from_file) {
  std::vector<std::string> words;
  for (const Setting& setting : settings.all()) {
    if (setting.source < Source::kConfig || stays_here(setting.option->name)) continue;
    if (setting.source == Source::kConfig) from_file.emplace_back(setting.option->name);
    const bool is_switch = setting.option->kind == OptionKind::kSwitch;
    for (const std::string& value : setting.values) {
      if (!is_switch) words.push_back(text("--", setting.option->name, "=", value));
      if (is_switch && settings.on(setting.option->name)) words.push_back(text("--", setting.option->name));
    }
  }
  return words;
}

// As --nproc_per_node has it: one number, or one for each machine.
std::string slots_of_each(const RemotePlan& plan) {
  const std::vector<ChosenHost>& hosts = plan.hosts;
  std::vector<size_t> slots;
  for (const ChosenHost& host : hosts) slots.push_back(host.slots.size());
  const auto other = std::find_if(slots.begin(), slots.end(), [&](size_t n) { return n != slots.front(); });
  if (other == slots.end()) return std::to_string(slots.front());
  if (plan.launcher == RemoteLauncher::kSsh || plan.launcher == RemoteLauncher::kPdsh) return join(slots, ",");
  throw UsageError({"launch"}, "srun and mpirun number the machines themselves, so that all must have as many ",
                   "processes, but ", hosts.front().name, " has ", count_text(slots.front(), "slot"), " and ",
                   hosts[static_cast<size_t>(other - slots.begin())].name, " ", *other,
                   ". Use --launcher ssh, give --nproc_per_node, or even them out with --include or --exclude.");
}

std::string host_list(const RemotePlan& plan, const std::string& after_each) {
  std::vector<std::string> names;
  for (const ChosenHost& host : plan.hosts) names.push_back(host.name + after_each);
  return join(names, ",");
}

constexpr const char* kHexDigits = "0123456789abcdef";

// DeepSpeed's own names of the filters may stand in configurations of one machine.
void refuse_filters_without_hosts(const LaunchSettings& settings) {
  for (const char* name : {"include", "exclude"}) {
    if (!settings.has(name)) continue;
    throw UsageError({"launch"}, "--", name, " '", *settings.text(name),
                     "' chooses among machines, and there is neither a hostfile nor a job that names some. Give "
                     "--hostfile, or leave it out.");
  }
}

}  // namespace

std::map<std::string, std::string> forwarded(const Environment& environment) {
  static const std::vector<std::string> families = {
      "HASTEN_",     "ACCELERATE_",    "PET_",         "TORCH",
      "PYTORCH_",    "NCCL_",          "GLOO_",        "TP_",
      "OMP_",        "KMP_",           "GOMP_",        "MKL_",
      "CUDA_",       "CUBLAS_",        "UCX_",         "FSDP_",
      "HF_",         "TRANSFORMERS_",  "MLFLOW_",      "WANDB_",
      "COMET_",      "PYTHON",         "CONDA_",       "XLA_",
      "MALLOC_",     "GLIBC_TUNABLES", "MEGATRON_LM_", "PARALLELISM_CONFIG_",
      "TOKENIZERS_", "MUSA_",          "HSA_",         "ROCM_",
      "HIP_"};
  static const std::set<std::string> single = {
      "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ", "NO_COLOR", "XDG_CACHE_HOME"};
  static const std::set<std::string> never = {"CUDA_VISIBLE_DEVICES", "TORCHELASTIC_ERROR_FILE"};
  std::map<std::string, std::string> chosen;
  for (const auto& [name, value] : environment.variables()) {
    const bool of_family = std::any_of(families.begin(), families.end(),
                                       [&](const std::string& family) { return name.starts_with(family); });
    if ((of_family || single.count(name) != 0) && never.count(name) == 0) chosen[name] = value;
  }
  return chosen;
}

std::optional<RemotePlan> plan_remote(const LaunchSettings& settings, const Cluster& cluster,
                                      const std::vector<std::string>& program, const Environment& environment,
                                      const FileReader& read_file) {
  const auto [hostfile, for_mpirun] = chosen_hostfile(settings, cluster);
  std::string launcher = either(settings, "launcher", "deepspeed_multinode_launcher");
  if (launcher.empty() && for_mpirun) launcher = "openmpi";
  if (launcher == "standard") return std::nullopt;  // the user starts one command on each machine
  std::vector<Host> hosts;
  if (!hostfile.empty()) {
    const auto content = read_file(hostfile);
    if (!content) throw UsageError({"launch"}, "the hostfile '", hostfile, "' cannot be read. Check the path.");
    hosts = read_hostfile(*content, hostfile);
  } else {
    hosts = hosts_of_job(settings, cluster, settings.of("launcher").source == Source::kOption);
    if (hosts.empty()) {
      refuse_filters_without_hosts(settings);
      return std::nullopt;
    }
  }
  RemotePlan plan;
  plan.launcher = launcher_named(launcher, cluster);
  plan.launcher_arguments = blank_separated(settings.text("launcher_args").value_or(""));
  plan.hosts = choose_hosts(hosts, either(settings, "include", "deepspeed_inclusion_filter"),
                            either(settings, "exclude", "deepspeed_exclusion_filter"));
  plan.variables = forwarded(environment);
  const std::string address = either(settings, "main_process_ip", "master_addr");
  const std::string port = either(settings, "main_process_port", "master_port");
  plan.words = {text("--nnodes=", plan.hosts.size())};
  if (plan.hosts.size() > 1) {
    const bool given = is_given(settings, "main_process_ip", "master_addr");
    plan.words.push_back("--master_addr=" + (given ? address : plan.hosts.front().name));
    const std::string of_job = cluster.port == 0 ? "29500" : std::to_string(cluster.port);
    plan.words.push_back("--master_port=" + (port.empty() || port == "0" ? of_job : port));
  }
  if (!settings.has("num_processes") && !settings.has("nproc_per_node"))
    plan.words.push_back(text("--nproc_per_node=", slots_of_each(plan)));
  const auto options = options_again(settings, plan.from_file);
  plan.words.insert(plan.words.end(), options.begin(), options.end());
  plan.words.emplace_back("--");
  plan.words.insert(plan.words.end(), program.begin(), program.end());
  return plan;
}

RemoteTask task_for(const RemotePlan& plan, std::optional<int> rank, const std::string& folder) {
  RemoteTask task{folder, plan.variables, plan.words, plan.from_file};
  if (!rank) return task;
  task.words.insert(task.words.begin(), text("--node_rank=", *rank));
  const ChosenHost& host = plan.hosts[static_cast<size_t>(*rank)];
  if (host.named) task.variables["CUDA_VISIBLE_DEVICES"] = join(host.slots, ",");
  return task;
}

std::string to_text(const RemoteTask& task) {
  // Not as JSON text, since file names and arguments need not be UTF-8.
  const std::vector<uint8_t> content = json::to_msgpack(
      {{"folder", task.folder}, {"variables", task.variables}, {"words", task.words}, {"from_file", task.from_file}});
  std::string line;
  for (const uint8_t c : content) {
    line += kHexDigits[c / 16];
    line += kHexDigits[c % 16];
  }
  return line;
}

RemoteTask task_in(const std::string& line) {
  std::vector<uint8_t> content;
  for (size_t i = 0; i + 1 < line.size(); i += 2)
    content.push_back(static_cast<uint8_t>(std::strtol(line.substr(i, 2).c_str(), nullptr, 16)));
  try {
    const json task = json::from_msgpack(content);
    return {task.at("folder"), task.at("variables"), task.at("words"), task.at("from_file")};
  } catch (const json::exception&) {
    throw UsageError({"launch"}, "what this machine was told is no task of hasten launch. Is the same version of ",
                     "hasten on all machines?");
  }
}

std::vector<std::string> command_for_all(const RemotePlan& plan, const std::string& hasten, const std::string& folder) {
  const std::string task = to_text(task_for(plan, std::nullopt, folder));
  const std::string number = std::to_string(plan.hosts.size());
  std::vector<std::string> words;
  const auto add = [&](const std::vector<std::string>& more) { words.insert(words.end(), more.begin(), more.end()); };
  if (plan.launcher == RemoteLauncher::kOpenMpi) {
    add({"mpirun", "-np", number, "--map-by", "ppr:1:node", "--bind-to", "none", "--host", host_list(plan, ":1")});
    add(plan.launcher_arguments);
    add({hasten, "remote", "watch-parent", task});
  } else {
    add({"srun", "--nodes=" + number, "--ntasks=" + number, "--ntasks-per-node=1", "--kill-on-bad-exit=1",
         "--nodelist=" + host_list(plan, "")});
    add(plan.launcher_arguments);
    add({hasten, "remote", "watch-parent", task});
  }
  return words;
}

std::vector<std::string> command_for_one(const RemotePlan& plan, int rank, const std::string& hasten,
                                         const std::string& folder) {
  const std::string& host = plan.hosts[static_cast<size_t>(rank)].name;
  const bool pdsh = plan.launcher == RemoteLauncher::kPdsh;
  std::vector<std::string> words = {"ssh"};
  if (pdsh) words = {"pdsh", "-R", "ssh", "-S", "-b", "-N", "-w", host};  // -S returns the exit code
  words.insert(words.end(), plan.launcher_arguments.begin(), plan.launcher_arguments.end());
  if (pdsh) {
    words.push_back(text(shell_word(hasten), " remote watch-stdin ", to_text(task_for(plan, rank, folder))));
    return words;
  }
  // ssh takes the first of two values for an option, so the user's count. There is no user to answer a question for a
  // password.
  for (const char* option : {"BatchMode=yes", "ServerAliveInterval=3", "ServerAliveCountMax=3"})
    words.insert(words.end(), {"-o", option});
  words.insert(words.end(), {"-T", host, shell_word(hasten) + " remote follow"});
  return words;
}

}  // namespace hasten::launcher
