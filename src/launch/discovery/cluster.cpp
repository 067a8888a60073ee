// Reading Slurm's, the MPIs', PBS's and LSF's variables; see cluster.h. The rules for steps and for the port are those
// of a program that is started without this launcher (src/process/rank_info.cpp).
#include "hasten/launch/discovery/cluster.h"

#include <algorithm>
#include <climits>
#include <fstream>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"

namespace hasten::launcher {
namespace {

constexpr int kFirstJobPort = 15000;  // below the ports that Linux hands out by itself (32768 and up)
constexpr int kNumJobPorts = 15000;

int port_for(uint64_t number) {
  return kFirstJobPort + static_cast<int>(number % kNumJobPorts);
}

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211ULL;
  return hash;
}

// Throws if it is missing: the variable belongs to a set of which another one is there.
std::string required(const Environment& environment, const std::string& scheduler, const std::string& name) {
  if (const auto value = environment.text(name)) return *value;
  throw UsageError({"launch"}, "the environment of ", scheduler, " is half set: ", name,
                   " is missing. Set it, or say with --nnodes and --node_rank what the run shall be.");
}

std::vector<Host> with_slots(const std::vector<std::string>& names, const std::vector<int>& slots) {
  std::vector<Host> hosts;
  for (size_t i = 0; i < names.size(); ++i) hosts.push_back({names[i], i < slots.size() ? slots[i] : 1});
  return hosts;
}

// The machines of a job, for any starter of the launchers there.
void find_hosts(const Environment& environment, const FileReader& read_file, Cluster& cluster) {
  const auto take = [&](const char* name, const std::string& origin, std::vector<Host> hosts) {
    cluster.name = name;
    cluster.hosts = std::move(hosts);
    cluster.hosts_origin = origin;
  };
  const auto in_file = [&](const std::string& variable) {
    const std::string path = *environment.text(variable);
    if (const auto content = read_file(path)) return count_names(*content);
    throw UsageError({"launch"}, variable, "='", path, "' cannot be read. Correct it, or unset it to run alone.");
  };
  if (const auto nodes = environment.text("SLURM_JOB_NODELIST")) {
    const auto tasks = environment.text("SLURM_TASKS_PER_NODE");
    take("Slurm", "SLURM_JOB_NODELIST", with_slots(expand_node_list(*nodes), expand_counts(tasks.value_or(""))));
    cluster.port = port_for(31 * static_cast<uint64_t>(environment.integer("SLURM_JOB_ID", 0).value_or(0)));
  } else if (environment.has("PBS_NODEFILE")) {
    take("PBS", "PBS_NODEFILE", in_file("PBS_NODEFILE"));
    cluster.port = port_for(fnv1a(environment.text("PBS_JOBID").value_or("")));
  } else if (environment.has("LSB_DJOB_HOSTFILE")) {
    take("LSF", "LSB_DJOB_HOSTFILE", in_file("LSB_DJOB_HOSTFILE"));
  } else if (const auto counts = environment.text("LSB_MCPU_HOSTS")) {
    take("LSF", "LSB_MCPU_HOSTS", names_with_counts(*counts));
  } else if (const auto names = environment.text("LSB_HOSTS")) {
    take("LSF", "LSB_HOSTS", count_names(*names));
  }
  if (cluster.name == "LSF") cluster.port = port_for(fnv1a(environment.text("LSB_JOBID").value_or("")));
}

// The user's settings of the meeting point count. The others come from the job's number and list.
void add_meeting_point(const Environment& environment, Cluster& cluster) {
  if (const auto address = environment.text("MASTER_ADDR")) {
    cluster.values.push_back({"master_addr", *address, "MASTER_ADDR"});
  } else if (!cluster.hosts.empty()) {
    cluster.values.push_back({"master_addr", cluster.hosts.front().name, cluster.hosts_origin});
  }
  if (const auto port = environment.integer("MASTER_PORT", 1, 65535)) {
    cluster.values.push_back({"master_port", text(*port), "MASTER_PORT"});
  } else if (cluster.port != 0) {
    cluster.values.push_back({"master_port", text(cluster.port), "the job's number"});
  }
}

struct MpiVariables {
  const char* name;
  const char* size;
  const char* rank;
  const char* local_size;
};

constexpr MpiVariables kMpis[] = {
    {"OpenMPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"}};

// A launcher among several that an MPI's mpirun started.
bool find_mpi(const Environment& environment, const MpiVariables& mpi, Cluster& cluster) {
  const auto size = environment.integer(mpi.size, 1, INT_MAX);
  if (size.value_or(1) < 2) return false;
  cluster.name = mpi.name;
  cluster.started_on_each = true;
  cluster.values = {{"nnodes", text(*size), mpi.size},
                    {"node_rank", required(environment, mpi.name, mpi.rank), mpi.rank}};
  const auto beside = environment.integer(mpi.local_size, 1, INT_MAX);
  if (beside.value_or(1) > 1) {
    cluster.problem = text(mpi.name, " started ", count_text(*beside, "launcher"), " on this machine (", mpi.local_size,
                           "), but each starts all workers of its machine; start one a machine (mpirun --map-by "
                           "ppr:1:node, mpiexec -ppn 1) and give --nproc_per_node");
  }
  auto job = environment.text("PMIX_NAMESPACE");
  if (!job) job = environment.text("OMPI_MCA_ess_base_jobid");
  if (job && cluster.port == 0) cluster.port = port_for(fnv1a(*job));
  return true;
}

// Slurm gives batch and interactive shells a step as well, with a reserved number. A step of a single task is a program
// that runs alone.
bool is_step_of_several(const Environment& environment) {
  constexpr uint64_t kFirstReserved = 0xfffffff0;
  const std::string step = environment.text("SLURM_STEP_ID").value_or("");
  if (step.empty() || step.size() > 10 || step.find_first_not_of("0123456789") != std::string::npos) return false;
  return core::whole_number<uint64_t>(step) < kFirstReserved &&
         environment.integer("SLURM_STEP_NUM_TASKS", 1).value_or(1) > 1;
}

void find_step(const Environment& environment, Cluster& cluster) {
  const auto need = [&](const char* name) { return required(environment, "a Slurm step", name); };
  const std::string tasks = need("SLURM_STEP_TASKS_PER_NODE");
  const std::vector<int> per_node = expand_counts(tasks);
  cluster.name = "Slurm";
  cluster.started_on_each = true;
  cluster.hosts = with_slots(expand_node_list(need("SLURM_STEP_NODELIST")), per_node);
  cluster.hosts_origin = "SLURM_STEP_NODELIST";
  cluster.values = {{"nnodes", text(per_node.size()), "SLURM_STEP_TASKS_PER_NODE"},
                    {"node_rank", need("SLURM_NODEID"), "SLURM_NODEID"}};
  const auto job = static_cast<uint64_t>(environment.integer("SLURM_JOB_ID", 0).value_or(0));
  cluster.port = port_for(31 * job + core::whole_number<uint64_t>(need("SLURM_STEP_ID")).value());
  if (std::any_of(per_node.begin(), per_node.end(), [](int tasks_there) { return tasks_there > 1; })) {
    cluster.problem = text("srun started several launchers on one machine (SLURM_STEP_TASKS_PER_NODE ", tasks,
                           "), but each starts all workers of its machine; use srun --ntasks-per-node 1, and "
                           "give --nproc_per_node");
  }
}

}  // namespace

Cluster find_cluster(const Environment& environment, const FileReader& read_file) {
  Cluster cluster;
  find_hosts(environment, read_file, cluster);
  // srun may use PMI with its tasks, and mpirun may run below Slurm: the order is that of process::read_rank_info.
  if (!find_mpi(environment, kMpis[0], cluster)) {
    if (is_step_of_several(environment)) {
      find_step(environment, cluster);
    } else if (!find_mpi(environment, kMpis[1], cluster)) {
      find_mpi(environment, kMpis[2], cluster);
    }
  }
  if (cluster.started_on_each) add_meeting_point(environment, cluster);
  return cluster;
}

Cluster find_cluster(const Environment& environment) {
  return find_cluster(environment, core::read_file);
}

}  // namespace hasten::launcher
