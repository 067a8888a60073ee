// The commands of `hasten`: one function and one source file each; main.cpp holds the table.
#pragma once

#include <string>
#include <vector>

namespace hasten::launcher {
struct RemoteTask;
}

namespace hasten::cli {

/// `hasten launch`, given the words after that word; returns the exit code (as all functions here). Throws: UsageError
/// for what the user must mend (as all functions here).
int launch(const std::vector<std::string>& words);

/// The same for a machine of a run on several, by `task`. A hostfile of its configuration file is ignored.
int launch_here(const launcher::RemoteTask& task);

/// `hasten config [default|update]`.
int config(const std::vector<std::string>& words);

/// `hasten env`.
int env(const std::vector<std::string>& words);

/// `hasten test`.
int test(const std::vector<std::string>& words);

/// `hasten tpu-config`.
int tpu_config(const std::vector<std::string>& words);

/// `hasten track status|recover|sync|follow`.
int track(const std::vector<std::string>& words);

/// `hasten board`.
int board(const std::vector<std::string>& words);
/// `hasten plan --memory MODEL`.
int plan_command(const std::vector<std::string>& words);

/// `hasten to-fsdp2`.
int to_fsdp2(const std::vector<std::string>& words);

/// `hasten remote KIND [TASK]`, which `hasten launch` starts on other machines.
int remote(const std::vector<std::string>& words);

/// `hasten estimate-memory MODEL`.
int estimate_memory(const std::vector<std::string>& words);

/// `hasten merge-weights CHECKPOINT_DIRECTORY OUTPUT_PATH`.
int merge_weights(const std::vector<std::string>& words);

/// `hasten convert IN OUT`.
int convert(const std::vector<std::string>& words);

/// `hasten zero-to-fp32 CHECKPOINT_DIR OUTPUT_DIR`.
int zero_to_fp32(const std::vector<std::string>& words);

/// `hasten checkpoint list|show|verify|diff|prune|repair`.
int checkpoint(const std::vector<std::string>& words);

/// `hasten ps`.
int ps(const std::vector<std::string>& words);

/// `hasten watch [RUN]`.
int watch(const std::vector<std::string>& words);

/// `hasten stacks [RUN]`.
int stacks(const std::vector<std::string>& words);

/// `hasten completion bash|zsh`.
int completion(const std::vector<std::string>& words);

}  // namespace hasten::cli
