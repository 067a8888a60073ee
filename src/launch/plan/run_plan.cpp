// Counting processes and machines; see run_plan.h. Contradictions that need no counting are in
// option_conflicts.cpp.
#include "hasten/launch/plan/run_plan.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/strings.h"
#include "hasten/launch/output/stream_choice.h"
#include "hasten/launch/plan/affinity.h"
#include "launch/base/endpoint.h"
#include "launch/base/whole_number.h"
#include "launch/plan/option_conflicts.h"

namespace hasten::launcher {
namespace {

constexpr int kPortOfSeveralMachines = 29500;  // the peers'

constexpr int kMostMachines = 1 << 20;
constexpr int64_t kMostProcesses = INT32_MAX;

struct Machines {
  int least = 1, most = 1;
};

class Planner {
 public:
  Planner(const LaunchSettings& settings, const Machine& machine, std::vector<std::string> problems)
      : settings_(settings), machine_(machine), problems_(settings.problems()) {
    add(option_conflicts(settings, machine));
    add(std::move(problems));
  }

  RunPlan plan() {
    RunPlan plan;
    plan.kind = kind();
    const Machines machines = count_machines();
    plan.min_machines = machines.least;
    plan.max_machines = machines.most;
    read_roles(plan);
    count_processes(plan);
    check_roles(plan);
    plan.run.run_id = *settings_.text("rdzv_id");
    find_meeting_point(plan);
    plan.machine_rank = machine_rank(plan);
    const auto rank = static_cast<size_t>(plan.machine_rank);
    if (rank < plan.processes_of_machines.size()) plan.num_local_processes = plan.processes_of_machines[rank];
    check_workers(plan.num_local_processes);
    plan.rdzv_backend = *settings_.text("rdzv_backend");
    plan.rdzv_conf = read_rendezvous_conf(settings_.text("rdzv_conf").value_or(""), problems_);
    plan.rdzv_endpoint = settings_.text("rdzv_endpoint").value_or("");
    plan.run.role = *settings_.text("role");
    plan.run.max_restarts = static_cast<int>(settings_.integer("max_restarts").value_or(0));
    plan.run.survive = static_cast<int>(settings_.integer("survive").value_or(0));
    check_survive(plan);
    if (!problems_.empty()) refuse("launch", problems_, "See hasten launch --help.");
    return plan;
  }

 private:
  void add(std::vector<std::string> problems) {
    for (std::string& problem : problems) problems_.push_back(std::move(problem));
  }

  void check_survive(const RunPlan& plan) {
    if (plan.run.survive == 0) return;
    const Setting& survive = settings_.of("survive");
    if (plan.is_elastic()) {
      problems_.push_back(text("--survive ", plan.run.survive, " (", survive.origin,
                               ") needs a fixed world, and in an elastic run ranks come and go. ",
                               "Use --max_restarts there, or --rdzv_backend static"));
    } else if (plan.num_processes == 1) {
      problems_.push_back(text("--survive ", plan.run.survive, " (", survive.origin,
                               ") needs at least 2 processes: a rank that is replaced takes the state of ",
                               "another. Use --max_restarts and checkpoints"));
    }
  }

  LauncherKind kind() const {
    const bool cpu = settings_.of("cpu").source == Source::kOption && settings_.on("cpu");
    if (settings_.on("use_deepspeed") && !cpu) return LauncherKind::kDeepspeed;
    const bool torchrun = settings_.on("use_fsdp") || settings_.on("use_megatron_lm") || settings_.on("multi_gpu");
    if (torchrun && !cpu) return LauncherKind::kTorchrun;
    if (settings_.on("tpu") && !cpu) return LauncherKind::kTpu;
    return settings_.on_sagemaker() ? LauncherKind::kSagemaker : LauncherKind::kSimple;
  }

  // Returns the one of two names of a setting whose source is stronger. Equal sources must agree.
  const Setting* stronger(const char* one, const char* other) {
    const Setting& a = settings_.of(one);
    const Setting& b = settings_.of(other);
    if (a.values.empty() || b.values.empty()) return a.values.empty() ? (b.values.empty() ? nullptr : &b) : &a;
    if (a.source == b.source && a.source != Source::kDefault && a.values != b.values) {
      problems_.push_back(text(shown(a), " and ", shown(b), " are two names of one thing; give one"));
    }
    return a.source >= b.source ? &a : &b;
  }

  static std::string shown(const Setting& setting) {
    const std::string value = setting.values.empty() ? "" : setting.values.back();
    if (setting.source == Source::kOption) return text("--", setting.option->name, " ", value);
    return text("'", setting.option->name, ": ", value, "' (", setting.origin, ")");
  }

  Machines count_machines() {
    const Setting* chosen = stronger("num_machines", "nnodes");
    Machines machines;
    if (chosen == nullptr) return machines;
    const std::string& word = chosen->values.back();
    const size_t colon = word.find(':');
    const auto least = whole_number(std::string_view(word).substr(0, colon));
    const auto most = colon == std::string::npos ? least : whole_number(std::string_view(word).substr(colon + 1));
    if (!least || !most || *least < 1 || *most < *least) {
      problems_.push_back(text(shown(*chosen), " is neither a number of machines nor MIN:MAX"));
      return machines;
    }
    if (*most > kMostMachines) {
      problems_.push_back(text(shown(*chosen), " are more than ", count_text(kMostMachines, "machine")));
      return machines;
    }
    machines = {*least, *most};
    if (settings_.on("standalone") && *most > 1) {
      problems_.push_back(text("--standalone is for one machine, but there is ", shown(*chosen)));
    }
    return machines;
  }

  // "ps=1,trainer=2".
  void read_roles(RunPlan& plan) {
    const auto all = settings_.text("roles");
    if (!all) return;
    for (const std::string& word : core::split(*all, ',')) {
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const int count =
          equals == std::string::npos ? 1 : whole_number(std::string_view(word).substr(equals + 1)).value_or(0);
      const bool again = std::any_of(plan.run.roles.begin(), plan.run.roles.end(),
                                     [&](const RoleCount& one) { return one.name == name; });
      if (name.empty() || count < 1 || count > kMostProcesses || again) {
        problems_.push_back(
            text("--roles: '", word, "' of '", *all, "' is not NAME=NUMBER with a name of its own and at least 1"));
        continue;
      }
      plan.run.roles.push_back({name, count});
    }
    if (settings_.of("role").source == Source::kOption)
      problems_.push_back("--role and --roles both name the workers' roles; give one");
  }

  int64_t num_in_roles(const RunPlan& plan) const {
    int64_t sum = 0;
    for (const RoleCount& one : plan.run.roles) sum += one.count;
    return sum;
  }

  // Roles give the number of processes, if no other setting does.
  void check_roles(RunPlan& plan) {
    if (plan.run.roles.empty()) return;
    const int64_t sum = num_in_roles(plan);
    if (settings_.of("num_processes").values.empty() && settings_.of("nproc_per_node").values.empty()) {
      if (sum % plan.min_machines != 0 || sum > kMostProcesses) {
        problems_.push_back(text("--roles makes ", count_text(sum, "process"),
                                 ", which cannot be shared out evenly among ", count_text(plan.min_machines, "machine"),
                                 "; give --nproc_per_node"));
        return;
      }
      plan.num_processes = static_cast<int>(sum);
      plan.num_local_processes = static_cast<int>(sum / plan.min_machines);
    }
    if (sum != plan.num_processes)
      problems_.push_back(text("--roles makes ", count_text(sum, "process"), ", but the run has ", plan.num_processes,
                               ". Leave the number out, or give the same."));
    if (plan.min_machines != plan.max_machines)
      problems_.push_back("--roles needs a fixed number of machines, because it counts all processes");
  }

  // nproc_per_node as a number; nothing if it is not set or wrong.
  std::optional<int> processes_per_machine() {
    const auto word = settings_.text("nproc_per_node");
    if (!word) return std::nullopt;
    const int num_cpus = machine_.num_cpus();
    if (*word == "cpu") return num_cpus;
    if (*word == "auto") return machine_.num_gpus() > 0 ? machine_.num_gpus() : num_cpus;
    if (*word == "gpu") {
      if (machine_.num_gpus() > 0) return machine_.num_gpus();
      problems_.push_back("--nproc_per_node gpu: this machine has no GPU that is visible");
      return std::nullopt;
    }
    const auto number = whole_number(*word);
    if (number && *number >= 1 && *number <= 1 << 20) return number;
    problems_.push_back(
        text("--nproc_per_node: '", *word, "' is not a whole number between 1 and 1048576", ", gpu, cpu or auto"));
    return std::nullopt;
  }

  void count_processes(RunPlan& plan) {
    const std::string word = settings_.text("nproc_per_node").value_or("");
    if (word.find(',') != std::string::npos) return count_each(word, plan);
    const auto per_machine = processes_per_machine();
    const Setting& all = settings_.of("num_processes");
    const Setting& each = settings_.of("nproc_per_node");
    const bool both = per_machine && !all.values.empty();
    if (both && all.source == each.source) check_product(plan, *per_machine);
    if (per_machine && int64_t{*per_machine} * plan.min_machines > kMostProcesses) {
      problems_.push_back(text("--nproc_per_node ", *per_machine, " * ", count_text(plan.min_machines, "machine"),
                               " are more than ", count_text(kMostProcesses, "process")));
      return;
    }
    if (per_machine && (all.values.empty() || each.source >= all.source)) {
      plan.num_local_processes = *per_machine;
      plan.num_processes = *per_machine * plan.min_machines;
      return;
    }
    if (all.values.empty()) {
      plan.num_processes = plan.min_machines;
      const std::string& type = settings_.distributed_type();
      if (!type.empty() && type != "NO" && each.values.empty()) {
        problems_.push_back(
            text("the configuration file has distributed_type ", type, ", but no num_processes; give -n"));
      }
      return;
    }
    plan.num_processes = static_cast<int>(*settings_.integer("num_processes"));
    plan.num_local_processes = std::max(1, plan.num_processes / plan.min_machines);
    if (plan.num_processes % plan.min_machines != 0) {
      problems_.push_back(
          text(shown(all), ": ", plan.num_processes, plan.num_processes == 1 ? " process" : " processes",
               " cannot be shared out evenly among ", count_text(plan.min_machines, "machine"), "; give a multiple"));
    }
  }

  // Settings of single workers, and resources of which all need enough.
  void check_workers(int num_workers) {
    if (settings_.on("virtual_local_rank") && machine_.num_gpus() > 0 && num_workers > machine_.num_gpus()) {
      problems_.push_back(text("--virtual_local_rank gives each worker a GPU, but there are ", machine_.num_gpus(),
                               " for ", count_text(num_workers, "worker")));
    }
    if (settings_.text("numa_binding") == "exclusive") add(problems_of_exclusive_binding(machine_, num_workers));
    const auto check_rank = [&](const char* option, int local_rank) {
      if (local_rank < num_workers) return;
      problems_.push_back(text("--", option, " names local rank ", local_rank, ", but this machine has ", num_workers,
                               num_workers == 1 ? " worker, 0" : " workers, 0 to ",
                               num_workers == 1 ? "" : std::to_string(num_workers - 1)));
    };
    for (const char* option : {"redirects", "tee"}) {
      const auto choice = read_stream_choice(*settings_.text(option));
      for (const auto& [local_rank, streams] : choice.value_or(StreamChoice()).by_local_rank)
        check_rank(option, local_rank);
    }
    const auto filter = read_local_ranks(settings_.text("local_ranks_filter").value_or(""));
    for (const int local_rank : filter.value_or(std::vector<int>())) check_rank("local_ranks_filter", local_rank);
  }

  // "1,3": 1 on machine 0, 3 on machine 1.
  void count_each(const std::string& list, RunPlan& plan) {
    plan.num_processes = 0;
    for (const std::string& word : core::split(list, ',')) {
      const int number = whole_number(word).value_or(0);
      if (number < 1 || number > 1 << 20) {
        problems_.push_back(
            text("--nproc_per_node: '", word, "' of '", list, "' is not a whole number between 1 and 1048576"));
      }
      plan.processes_of_machines.push_back(number);
      plan.num_processes += number;
    }
    const size_t num_numbers = plan.processes_of_machines.size();
    if (settings_.text("rdzv_backend") != "static") {
      problems_.push_back(text("--nproc_per_node ", list, " needs machines with a number of their own; nodes of ",
                               "an elastic run give each its own --nproc_per_node"));
    } else if (num_numbers != static_cast<size_t>(plan.max_machines)) {
      problems_.push_back(text("--nproc_per_node ", list, " has ", count_text(num_numbers, "number"),
                               ", but --nnodes is ", plan.max_machines));
    }
    const auto all = settings_.integer("num_processes");
    if (all && *all != plan.num_processes) {
      problems_.push_back(text("--nproc_per_node ", list, " makes ", count_text(plan.num_processes, "process"),
                               ", but --num_processes is ", *all, ". Give one of the two, or the same number."));
    }
  }

  void check_product(const RunPlan& plan, int per_machine) {
    const auto all = settings_.integer("num_processes");
    if (int64_t{per_machine} * plan.min_machines == *all) return;
    const std::string word = *settings_.text("nproc_per_node");
    const std::string spelt = whole_number(word) ? "" : text(" (", word, ")");
    problems_.push_back(text("--nproc_per_node ", per_machine, spelt, " * ", plan.min_machines,
                             plan.min_machines == 1 ? " machine" : " machines", " = ", per_machine * plan.min_machines,
                             ", but --num_processes is ", *all, ". Give one of the two, or the same number."));
  }

  void find_meeting_point(RunPlan& plan) {
    const Setting* address = stronger("main_process_ip", "master_addr");
    const Setting* port = stronger("main_process_port", "master_port");
    plan.run.master_addr = address->values.back();
    plan.run.master_port = whole_number(port->values.back()).value_or(0);
    if (settings_.on("standalone") || as_torchrun_alone(plan, *port)) stand_alone(plan, *address);
    const std::string endpoint = settings_.text("rdzv_endpoint").value_or("");
    if (plan.max_machines > 1 && !endpoint.empty() && settings_.text("rdzv_backend") == "static")
      meet_at(endpoint, *address, plan);
    const bool is_static = settings_.text("rdzv_backend") == "static";
    if (is_static && plan.min_machines != plan.max_machines)
      problems_.push_back(text("--nnodes ", *settings_.text("nnodes"), " needs --rdzv_backend c10d or etcd"));
    if (plan.max_machines == 1 || !endpoint.empty() || !is_static) return;
    const bool simple = plan.kind == LauncherKind::kSimple && settings_.has("num_machines");
    if (address->source == Source::kDefault) {
      problems_.push_back(text(of_several(), " need the address of the first: --main_process_ip (or --master_addr)",
                               in_file("main_process_ip")));
    }
    if (port->source == Source::kDefault && simple) {
      problems_.push_back(text(of_several(), " need a port on the first: --main_process_port (or --master_port)",
                               in_file("main_process_port")));
    }
    if (plan.run.master_port == 0) plan.run.master_port = kPortOfSeveralMachines;
  }

  // "several machines", and the place that asks for them where that is the configuration file.
  std::string of_several() const {
    for (const char* name : {"num_machines", "nnodes"}) {
      if (settings_.of(name).source == Source::kConfig)
        return text("several machines (", settings_.of(name).origin, ")");
    }
    return "several machines";
  }

  // The key that may be missing in the file that asks for several machines.
  std::string in_file(const char* key) const {
    const bool is_files = settings_.of("num_machines").source == Source::kConfig;
    return is_files ? text(", or ", key, " in the file") : "";
  }

  // As torchrun has it: the endpoint of static machines is where rank 0 opens the store, unless --master_addr sets that
  // already.
  void meet_at(const std::string& endpoint, const Setting& address, RunPlan& plan) {
    const std::optional<Endpoint> place = find_endpoint(endpoint, kPortOfSeveralMachines);
    if (!place || place->host.empty() || place->port == 0) {
      problems_.push_back(text("--rdzv_endpoint: '", endpoint, "' is not HOST:PORT"));
      return;
    }
    if (address.source == Source::kDefault) plan.run.master_addr = place->host;
    if (plan.run.master_port == 0) plan.run.master_port = place->port;
  }

  // torchrun without a port on one machine is as with --standalone.
  bool as_torchrun_alone(const RunPlan& plan, const Setting& port) const {
    return settings_.has("nproc_per_node") && port.source == Source::kDefault && plan.max_machines == 1 &&
           settings_.text("rdzv_backend") == "static" && settings_.text("rdzv_endpoint").value_or("").empty();
  }

  void stand_alone(RunPlan& plan, const Setting& address) const {
    if (address.source == Source::kDefault) plan.run.master_addr = "localhost";
    if (settings_.of("rdzv_id").source == Source::kDefault) plan.run.run_id = "";
  }

  int machine_rank(const RunPlan& plan) {
    const Setting* rank = stronger("machine_rank", "node_rank");
    if (rank == nullptr) {
      const bool asks = plan.kind != LauncherKind::kSimple && plan.max_machines > 1 && settings_.has("num_machines");
      if (asks) {
        problems_.push_back(text(of_several(), " need the number of this one: --machine_rank (or --node_rank)",
                                 in_file("machine_rank")));
      }
      return 0;
    }
    const int number = whole_number(rank->values.back()).value_or(-1);
    if (number < 0 && rank->source == Source::kCluster) {  // others are checked where they are read
      problems_.push_back(text(shown(*rank), " is no machine's number; they are counted from 0"));
      return 0;
    }
    const bool is_chosen = rank->source == Source::kOption || rank->source == Source::kConfig;
    if (number >= plan.max_machines && is_chosen) {
      problems_.push_back(text(shown(*rank), ": machines are counted from 0, and there ",
                               plan.max_machines == 1 ? "is 1" : text("are ", plan.max_machines)));
    }
    return number;
  }

  const LaunchSettings& settings_;
  const Machine& machine_;
  std::vector<std::string> problems_;
};

}  // namespace

RunPlan plan_run(const LaunchSettings& settings, const Machine& machine, std::vector<std::string> problems) {
  return Planner(settings, machine, std::move(problems)).plan();
}

}  // namespace hasten::launcher
