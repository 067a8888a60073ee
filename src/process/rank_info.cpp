// Reading a process's place from torchrun's, OpenMPI's and Slurm's variables; see rank_info.h.
#include "hasten/process/rank_info.h"

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::process {
namespace {

constexpr int kFirstDerivedPort = 15000;  // below the ports that Linux hands out by itself (32768 and up)
constexpr int kNumDerivedPorts = 15000;

/// The variables of one launcher: reads them, and records which are there and which are not.
class Variables {
 public:
  Variables(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  int integer(const std::string& name, int least) {
    const auto value = note(name) ? environment_.integer(name, least, INT_MAX) : std::nullopt;
    return static_cast<int>(value.value_or(least));
  }
  int integer_or(const std::string& name, int least, int fallback) {
    return environment_.has(name) ? integer(name, least) : fallback;
  }
  std::string text(const std::string& name) { return note(name) ? *environment_.text(name) : ""; }
  void missing(const std::string& name) { missing_.push_back(name); }

  /// Throws if anything that was requested is not there.
  void finish() const {
    if (missing_.empty()) return;
    throw UsageError({"state"}, "the environment of ", launcher_, " is half set: ", join(set_), " but not ",
                     join(missing_),
                     ". Set what is missing, start with hasten launch, or unset all of them to run alone.");
  }

 private:
  bool note(const std::string& name) {
    const auto value = environment_.text(name);
    value ? set_.push_back(name + "=" + *value) : missing_.push_back(name);
    return value.has_value();
  }

  const Environment& environment_;
  std::string launcher_;
  std::vector<std::string> set_;
  std::vector<std::string> missing_;
};

/// A launcher's names for its four numbers, for messages.
struct Names {
  std::string rank, world_size, local_rank, local_world_size;
};

void check(const RankInfo& identity, const Names& names) {
  const auto refuse = [&](const std::string& small, int value, const std::string& big, int bound, const char* rule) {
    throw UsageError({"state"}, small, '=', value, " contradicts ", big, '=', bound, ": ", rule,
                     ". Correct one of them; hasten launch sets both.");
  };
  const RankInfo& id = identity;
  if (id.rank >= id.world_size) {
    refuse(names.rank, id.rank, names.world_size, id.world_size, "ranks go from 0 to world size - 1");
  }
  if (id.local_world_size > id.world_size) {
    refuse(names.local_world_size, id.local_world_size, names.world_size, id.world_size,
           "a machine holds at most all ranks");
  }
  if (id.local_rank >= id.local_world_size) {
    refuse(names.local_rank, id.local_rank, names.local_world_size, id.local_world_size,
           "local ranks go from 0 to local world size - 1");
  }
}

int master_port(const Environment& environment, int derived) {
  return static_cast<int>(environment.integer("MASTER_PORT", 0, 65535).value_or(derived));
}

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211ULL;
  return hash;
}

RankInfo from_torchrun(const Environment& environment) {
  const Names names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  Variables variables(environment, "torchrun");
  RankInfo id;
  id.source = "torchrun";
  id.rank = variables.integer(names.rank, 0);
  id.world_size = variables.integer(names.world_size, 1);
  const bool alone = environment.has(names.world_size) && id.world_size == 1;
  id.master_addr = alone ? environment.text("MASTER_ADDR").value_or(id.master_addr) : variables.text("MASTER_ADDR");
  if (!alone) variables.integer("MASTER_PORT", 0);
  id.master_port = master_port(environment, id.master_port);
  const bool one_machine = alone || is_loopback(id.master_addr);
  id.local_rank =
      one_machine ? variables.integer_or(names.local_rank, 0, id.rank) : variables.integer(names.local_rank, 0);
  id.local_world_size = one_machine ? variables.integer_or(names.local_world_size, 1, id.world_size)
                                    : variables.integer(names.local_world_size, 1);
  variables.finish();
  check(id, names);
  // torchrun numbers the ranks machine by machine.
  id.node_rank = variables.integer_or("GROUP_RANK", 0, id.rank / id.local_world_size);
  id.agent_store = environment.flag("TORCHELASTIC_USE_AGENT_STORE").value_or(false);
  id.restart_count = static_cast<int>(environment.integer("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX).value_or(0));
  id.role = environment.text("ROLE_NAME").value_or(id.role);
  id.role_rank = static_cast<int>(environment.integer("ROLE_RANK", 0, INT_MAX).value_or(id.rank));
  id.role_world_size = static_cast<int>(environment.integer("ROLE_WORLD_SIZE", 1, INT_MAX).value_or(id.world_size));
  return id;
}

RankInfo from_openmpi(const Environment& environment) {
  const Names names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE"};
  Variables variables(environment, "OpenMPI");
  RankInfo id;
  id.source = "openmpi";
  id.rank = variables.integer(names.rank, 0);
  id.world_size = variables.integer(names.world_size, 1);
  id.local_rank = variables.integer(names.local_rank, 0);
  id.local_world_size = variables.integer(names.local_world_size, 1);
  if (id.local_world_size < id.world_size) {
    id.master_addr = variables.text("MASTER_ADDR");
  } else {
    id.master_addr = environment.text("MASTER_ADDR").value_or(id.master_addr);
  }
  auto job = environment.text("PMIX_NAMESPACE");
  if (!job) job = environment.text("OMPI_MCA_ess_base_jobid");
  if (!job && id.world_size > 1 && !environment.has("MASTER_PORT")) variables.missing("MASTER_PORT");
  id.master_port =
      master_port(environment, kFirstDerivedPort + static_cast<int>(fnv1a(job.value_or("")) % kNumDerivedPorts));
  variables.finish();
  check(id, names);
  // OpenMPI does not number the machines. This holds for its default, which fills one after the other.
  id.node_rank = id.rank / id.local_world_size;
  return id;
}

/// "2(x3),1", node 3 -> 1.
int tasks_on_node(const std::string& tasks_per_node, int node) {
  const char* at = tasks_per_node.c_str();
  int first = 0;
  while (*at != '\0') {
    char* end = nullptr;
    const long tasks = std::strtol(at, &end, 10);
    long repeats = 1;
    if (end[0] == '(' && end[1] == 'x') repeats = std::strtol(end + 2, &end, 10);
    if (*end == ')') ++end;
    if (end == at || tasks < 1 || repeats < 1 || (*end != ',' && *end != '\0')) break;
    if (node < first + repeats) return static_cast<int>(tasks);
    first += static_cast<int>(repeats);
    at = *end == ',' ? end + 1 : end;
  }
  throw UsageError({"state"}, "SLURM_STEP_TASKS_PER_NODE='", tasks_per_node,
                   "' does not tell the number of tasks on node ", node,
                   " (SLURM_NODEID); a list such as 2(x3),1 was expected. Start with srun, or set RANK, WORLD_SIZE, "
                   "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself.");
}

/// "gpu[01-03,7]x,cpu1" -> "gpu01x".
std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t end_of_first = node_list.find_first_of("-,]", i);
    host += node_list.substr(i + 1, end_of_first - i - 1);
    i = node_list.find(']', i);
    if (i == std::string::npos) break;
  }
  return host;
}

/// Returns the rank info of a step that srun made of several tasks. Slurm gives batch and interactive shells a step as
/// well, with a reserved number. A step of a single task is a program that runs alone.
bool is_slurm_step(const Environment& environment) {
  constexpr uint64_t kFirstReserved = 0xfffffff0;
  const std::string step = environment.text("SLURM_STEP_ID").value_or("");
  if (step.empty() || step.find_first_not_of("0123456789") != std::string::npos || step.size() > 10) return false;
  return core::whole_number<uint64_t>(step) < kFirstReserved &&
         environment.integer("SLURM_STEP_NUM_TASKS", 1).value_or(1) > 1;
}

RankInfo from_slurm(const Environment& environment) {
  const Names names{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"};
  Variables variables(environment, "a Slurm step");
  RankInfo id;
  id.source = "slurm";
  id.rank = variables.integer(names.rank, 0);
  id.world_size = variables.integer(names.world_size, 1);
  id.local_rank = variables.integer(names.local_rank, 0);
  id.node_rank = variables.integer("SLURM_NODEID", 0);
  const std::string tasks = variables.text(names.local_world_size);
  if (!tasks.empty()) id.local_world_size = tasks_on_node(tasks, id.node_rank);
  if (const auto given = environment.text("MASTER_ADDR")) {
    id.master_addr = *given;
  } else if (id.local_world_size < id.world_size) {
    id.master_addr = first_host(variables.text("SLURM_STEP_NODELIST"));
  }
  if (!environment.has("MASTER_PORT")) {
    const int64_t job = variables.integer("SLURM_JOB_ID", 0);
    const int64_t step = variables.integer("SLURM_STEP_ID", 0);
    id.master_port = static_cast<int>(kFirstDerivedPort + (31 * job + step) % kNumDerivedPorts);
  }
  id.master_port = master_port(environment, id.master_port);
  variables.finish();
  check(id, names);
  return id;
}

/// Another MPI's launcher: nothing here reads its variables, and a world of one each would be N separate
/// trainings.
void refuse_other_mpi(const Environment& environment) {
  for (const char* name : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    const auto size = environment.integer(name);
    if (!size || *size <= 1) continue;
    throw UsageError({"state"}, name, '=', *size, " says that an MPI launcher started ", count_text(*size, "process"),
                     ", but of those only OpenMPI's is understood. Use hasten launch, or set RANK, WORLD_SIZE, "
                     "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process.");
  }
}

bool any(const Environment& environment, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    if (environment.has(name)) return true;
  }
  return false;
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

RankInfo read_rank_info(const Environment& environment) {
  if (any(environment, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})) return from_torchrun(environment);
  if (any(environment, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) return from_openmpi(environment);
  if (is_slurm_step(environment)) return from_slurm(environment);
  refuse_other_mpi(environment);
  return {};
}

}  // namespace hasten::process
