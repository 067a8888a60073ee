#include "hasten/launch/plan/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Machine with_cpus_and_gpus(int cpus, int gpus) {
  Machine machine;
  for (int cpu = 0; cpu < cpus; ++cpu) machine.cpus.push_back({.number = cpu, .core = cpu});
  machine.gpu_nodes.assign(static_cast<size_t>(gpus), 0);
  return machine;
}

RunPlan plan(const Words& words, const Machine& machine = with_cpus_and_gpus(8, 0)) {
  return plan_run(LaunchSettings(read_command_line(launch_options(), words), nullptr, Environment::of({})), machine);
}

std::string refused(const Words& words, const Machine& machine = with_cpus_and_gpus(8, 0)) {
  try {
    plan(words, machine);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::string one(const std::string& problem) {
  return "[launch] " + problem + ". See hasten launch --help.";
}

TEST(RunPlan, CountsProcessesInAllOrPerMachine) {
  EXPECT_EQ(plan({}).num_processes, 1);
  EXPECT_EQ(plan({"-n", "4"}).num_local_processes, 4);
  EXPECT_EQ(plan({"--nproc_per_node", "3"}).num_processes, 3);
  EXPECT_EQ(plan({"--nproc_per_node", "cpu"}).num_processes, 8);
  EXPECT_EQ(plan({"--nproc_per_node", "auto"}).num_processes, 8);
  EXPECT_EQ(plan({"--nproc_per_node", "auto"}, with_cpus_and_gpus(8, 2)).num_processes, 2);
  EXPECT_EQ(plan({"--nproc_per_node", "gpu"}, with_cpus_and_gpus(8, 2)).num_processes, 2);
  const RunPlan several = plan({"--nnodes", "2", "--nproc_per_node", "3", "--master_addr", "h", "-n", "6"});
  EXPECT_EQ(several.num_processes, 6);
  EXPECT_EQ(several.num_local_processes, 3);
  EXPECT_EQ(several.max_machines, 2);
}

TEST(RunPlan, MachinesMayHaveDifferentNumbersOfProcesses) {
  const Words two = {"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--nproc_per_node", "1,3"};
  const RunPlan second = plan(two);
  EXPECT_EQ(second.num_processes, 4);
  EXPECT_EQ(second.num_local_processes, 3);
  EXPECT_EQ(second.processes_of_machines, (std::vector<int>{1, 3}));
  EXPECT_THAT(refused({"--nnodes", "3", "--master_addr", "h", "--nproc_per_node", "1,3", "-n", "5"}),
              ::testing::AllOf(HasSubstr("--nproc_per_node 1,3 has 2 numbers, but --nnodes is 3"),
                               HasSubstr("--nproc_per_node 1,3 makes 4 processes, but --num_processes is 5")));
  EXPECT_THAT(refused({"--nnodes", "2", "--master_addr", "h", "--nproc_per_node", "0,x"}),
              ::testing::AllOf(HasSubstr("'0' of '0,x'"), HasSubstr("'x' of '0,x'")));
  EXPECT_THAT(refused({"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "h", "--nproc_per_node", "1,3"}),
              HasSubstr("each its own --nproc_per_node"));
}

TEST(RunPlan, ChecksTheProduct) {
  EXPECT_THAT(refused({"-n", "4", "--roles", "ps=1,trainer=2"}),
              HasSubstr("--roles makes 3 processes, but the run has 4"));
  EXPECT_THAT(refused({"--roles", "ps=1,ps=x"}), HasSubstr("'ps=x' of 'ps=1,ps=x' is not NAME=NUMBER"));
  EXPECT_EQ(refused({"-n", "4", "--nproc_per_node", "2"}),
            "[launch] --nproc_per_node 2 * 1 machine = 2, but --num_processes is 4. Give one of the two, or "
            "the same "
            "number. See hasten launch --help.");
  EXPECT_THAT(refused({"-n", "4", "--nproc_per_node", "cpu"}),
              HasSubstr("--nproc_per_node 8 (cpu) * 1 machine = 8, but --num_processes is 4."));
  EXPECT_THAT(refused({"-n", "5", "--num_machines", "2", "--main_process_ip", "h", "--main_process_port", "9"}),
              HasSubstr("5 processes cannot be shared out evenly among 2 machines"));
}

TEST(RunPlan, NamesWhatANumberOfProcessesCannotBe) {
  EXPECT_EQ(refused({"--nproc_per_node", "gpu"}), one("--nproc_per_node gpu: this machine has no GPU that is visible"));
  EXPECT_EQ(refused({"--nproc_per_node", "many"}),
            one("--nproc_per_node: 'many' is not a whole number between 1 and 1048576, gpu, cpu or auto"));
  EXPECT_EQ(refused({"--nnodes", "4:2"}), one("--nnodes 4:2 is neither a number of machines nor MIN:MAX"));
}

TEST(RunPlan, TwoNamesOfOneThingMustAgree) {
  EXPECT_EQ(plan({"--main_process_port", "7", "--master_port", "7"}).run.master_port, 7);
  EXPECT_EQ(refused({"--main_process_port", "7", "--master_port", "8"}),
            one("--main_process_port 7 and --master_port 8 are two names of one thing; give one"));
}

TEST(RunPlan, SeveralMachinesMustKnowWhereToMeet) {
  EXPECT_EQ(refused({"--num_machines", "2", "-n", "2", "--cpu"}),
            "[launch] 2 things are wrong:\n"
            "  several machines need the address of the first: --main_process_ip (or --master_addr)\n"
            "  several machines need a port on the first: --main_process_port (or --master_port)\n"
            "See hasten launch --help.");
  EXPECT_EQ(plan({"--nnodes", "1:4", "--rdzv_backend", "c10d", "--rdzv_endpoint", "h:1"}).max_machines, 4);
  EXPECT_EQ(refused({"--nnodes", "2", "--master_addr", "h", "--node_rank", "2"}),
            one("--node_rank 2: machines are counted from 0, and there are 2"));
}

TEST(RunPlan, AnEndpointOfStaticMachinesIsWhereTheyMeet) {
  const auto at = [](const std::string& endpoint) {
    return plan({"--nnodes", "2", "--node_rank", "0", "--nproc_per_node", "1", "--rdzv_endpoint", endpoint});
  };

  EXPECT_EQ(at("h:29479").run.master_addr, "h");
  EXPECT_EQ(at("[::1]:29479").run.master_addr, "::1");
  EXPECT_EQ(at("[::1]:29479").run.master_port, 29479);
  EXPECT_EQ(at("[::1]").run.master_port, 29500);
  EXPECT_THROW(at("h:x"), UsageError);
  EXPECT_THROW(at(":1"), UsageError);
}

TEST(RunPlan, NumbersThatNoClusterHasAreRefused) {
  EXPECT_EQ(refused({"--nnodes", "2147483647", "--master_addr", "h"}),
            one("--nnodes 2147483647 are more than 1048576 machines"));
  EXPECT_EQ(refused({"--nnodes", "1048576", "--nproc_per_node", "1048576", "--master_addr", "h"}),
            one("--nproc_per_node 1048576 * 1048576 machines are more than 2147483647 processes"));
}

TEST(RunPlan, GpusThatAreNoneAreRefused) {
  EXPECT_EQ(
      refused({"--gpu_ids", "0,x"}),
      one("--gpu_ids 0,x names 'x', which is no GPU; expected numbers such as 0,2, names such as GPU-8932f937, or "
          "all"));
  EXPECT_NE(refused({"--gpu_ids", "-1"}).find("names '-1'"), std::string::npos);
  EXPECT_EQ(refused({"--cpu", "--gpu_ids", "0, 2,GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"}), "");
  EXPECT_EQ(refused({"--cpu", "--gpu_ids", "all"}), "");
}

TEST(RunPlan, ListsAllContradictionsInOneMessage) {
  EXPECT_EQ(refused({"--cpu", "--use_fsdp", "--fsdp_sync_module_states", "false", "-m", "--no_python", "--tee", "9",
                     "--rdzv_backend", "c10", "--signals_to_handle", "SIGTERM,SIGFOO"}),
            "[launch] 6 things are wrong:\n"
            "  --cpu and --use_fsdp exclude each other; give one\n"
            "  fsdp_cpu_ram_efficient_loading true (default) needs fsdp_sync_module_states true, but there is "
            "--fsdp_sync_module_states false\n"
            "  --module needs Python, which --no_python leaves out; give one\n"
            "  --rdzv_backend: 'c10' is not one of static, c10d, etcd, etcd-v2, did you mean 'c10d'?\n"
            "  --tee: '9' names no streams; expected 0 to 3, or RANK:0 to 3 for some ranks (0:1,1:3)\n"
            "  --signals_to_handle: 'SIGFOO' is no signal, did you mean 'SIGFPE'? Expected a list like "
            "SIGTERM,SIGUSR1\n"
            "See hasten launch --help.");
}

TEST(RunPlan, WhatIsSaidOfWorkersThatThereAreNotIsInTheSameList) {
  EXPECT_EQ(refused({"-n", "2", "--tee", "2:1", "--redirects", "0:3,5:1", "--local_ranks_filter", "1,3",
                     "--numa_binding", "exclusive", "--signals_to_handle", "SIGKILL"},
                    with_cpus_and_gpus(1, 0)),
            "[launch] 5 things are wrong:\n"
            "  --signals_to_handle: SIGKILL cannot be handed on to the workers. Leave it out\n"
            "  --numa_binding exclusive: NUMA node 0 has 1 core for 2 workers. Start fewer, or choose "
            "--numa_binding node.\n"
            "  --redirects names local rank 5, but this machine has 2 workers, 0 to 1\n"
            "  --tee names local rank 2, but this machine has 2 workers, 0 to 1\n"
            "  --local_ranks_filter names local rank 3, but this machine has 2 workers, 0 to 1\n"
            "See hasten launch --help.");
  EXPECT_EQ(refused({"--local_ranks_filter", "1"}),
            one("--local_ranks_filter names local rank 1, but this machine has 1 worker, 0"));
}

TEST(RunPlan, NoSignalAtAllIsNoList) {
  for (const char* none : {"", ","}) {
    EXPECT_EQ(refused({"--signals_to_handle", none}),
              one("--signals_to_handle: '' is no signal. Expected a list like SIGTERM,SIGUSR1"));
  }
}

TEST(RunPlan, LinesAreCopiedFromTeedStreamsOnly) {
  EXPECT_EQ(refused({"--duplicate_stdout_filters", "loss", "--tee", "0:2"}),
            one("--duplicate_stdout_filters loss copies lines of what --tee takes; give --tee 1 or 3 as well"));
  EXPECT_EQ(refused({"--duplicate_stdout_filters", "loss", "--tee", "0:1"}), "");
}

TEST(RunPlan, RefusesWhatTheMachineLacks) {
  EXPECT_EQ(refused({"--mixed_precision", "fp8"}), one("--mixed_precision fp8 needs a GPU, and this machine has none"));
  EXPECT_EQ(refused({"--virtual_local_rank", "-n", "3"}, with_cpus_and_gpus(8, 2)),
            one("--virtual_local_rank gives each worker a GPU, but there are 2 for 3 workers"));
}

TEST(RunPlan, TorchrunsOptionsWithoutAPortAreAStandaloneRun) {
  EXPECT_EQ(plan({"--nproc_per_node", "2"}).run.run_id, "");
  EXPECT_EQ(plan({"--nproc_per_node", "2"}).run.master_addr, "localhost");
  EXPECT_EQ(plan({"--nproc_per_node", "2", "--rdzv_id", "job"}).run.run_id, "job");
  EXPECT_EQ(plan({"--nproc_per_node", "2", "--master_port", "7"}).run.run_id, "none");
  EXPECT_EQ(plan({"-n", "2"}).run.master_addr, "127.0.0.1");
}

TEST(RunPlan, AStandaloneRunIsOneMachineWithANameOfItsOwn) {
  const RunPlan standalone = plan({"--standalone", "-n", "2"});

  EXPECT_EQ(standalone.run.run_id, "");
  EXPECT_EQ(standalone.run.master_addr, "localhost");
  EXPECT_THAT(refused({"--standalone", "--nnodes", "2", "--master_addr", "h"}),
              HasSubstr("--standalone is for one machine, but there is --nnodes 2"));
}

}  // namespace
}  // namespace hasten::launcher
