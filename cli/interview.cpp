// The questions behind interview.h, one function a subject.
#include "interview.h"

#include <algorithm>

namespace hasten::cli {
namespace {

using core::Value;

class Interview {
 public:
  Interview(Asker& asker, std::string precision) : asker_(asker), precision_(std::move(precision)) {}

  Value on_this_machine() {
    set("compute_environment", "LOCAL_MACHINE");
    kind_of_machine();
    if (type_.starts_with("MULTI_")) machines();
    processor();
    compiler();
    if (type_ == "NO" || type_.starts_with("MULTI_")) way_of_training();
    if (type_ == "XLA") tpu();
    processes();
    precision();
    set("distributed_type", type_);
    return std::move(values_);
  }

  Value on_sagemaker() {
    set("compute_environment", "AMAZON_SAGEMAKER");
    set("profile", asker_.ask("AWS profile", "default"));
    set("region", asker_.ask("AWS region", "us-east-1"));
    set("iam_role_name", asker_.ask("IAM role for SageMaker", "accelerate_sagemaker_execution_role"));
    const std::vector<std::string> types = {"NO", "DATA_PARALLEL"};
    set("distributed_type", types[asker_.choose("How shall it be distributed?", {"not at all", "data parallelism"})]);
    set("ec2_instance_type", asker_.ask("EC2 instance type", "ml.p3.2xlarge"));
    set("num_machines", asker_.number("How many machines", 1, {.least = 1}));
    precision();
    return std::move(values_);
  }

 private:
  void set(const char* key, Value value) { values_[key] = std::move(value); }

  // An answer in a section of the file.
  void set_in(const char* section, const std::string& key, Value value) { values_[section][key] = std::move(value); }

  std::string choice(const std::string& question, const std::vector<std::string>& choices, size_t fallback = 0) {
    return choices[asker_.choose(question, choices, fallback)];
  }

  void kind_of_machine() {
    static const std::vector<std::string> types = {"NO",         "MULTI_CPU",    "MULTI_GPU", "MULTI_XPU",
                                                   "MULTI_HPU",  "MULTI_NPU",    "MULTI_MLU", "MULTI_SDAA",
                                                   "MULTI_MUSA", "MULTI_NEURON", "XLA"};
    type_ = types[asker_.choose(
        "What shall it run on?",
        {"one process", "several CPU processes", "several GPUs", "several XPUs", "several HPUs", "several NPUs",
         "several MLUs", "several SDAAs", "several MUSAs", "several Neuron cores", "TPU"})];
  }

  void machines() {
    const int64_t number = asker_.number("How many machines", 1, {.least = 1});
    set("num_machines", number);
    num_machines_ = number;
    if (number > 1) {
      set("machine_rank", asker_.number("Number of this machine, from 0", 0, {.least = 0, .most = number - 1}));
      set("main_process_ip", asker_.need("Address of the first machine"));
      set("main_process_port", asker_.number("Port on it", 29500, {.least = 1, .most = 65535}));
      const bool same_network = asker_.yes("Are all machines in one network", true);
      set("same_network", same_network);
      if (!same_network) set("rdzv_backend", choice("How do they find each other?", {"static", "c10d", "etcd"}));
    }
    set("debug", asker_.yes("Check collectives before they are carried out (slower)", false));
  }

  void processor() {
    bool cpu = type_ == "MULTI_CPU";
    if (type_ == "NO") cpu = asker_.yes("Stay on the CPU even if there is a GPU", false);
    set("use_cpu", cpu);
    if (cpu && type_ == "MULTI_CPU" && asker_.yes("Start through mpirun", false)) {
      set_in("mpirun_config", "mpirun_hostfile", {asker_.ask("Its hostfile", "~/hostfile")});
    }
  }

  void compiler() {
    if (!asker_.yes("Use torch.compile", false)) return;
    set_in("dynamo_config", "dynamo_backend",
           {choice("Which compiler?",
                   {"EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI",
                    "FX2TRT", "ONNXRT", "TENSORRT", "TVM"},
                   2)});
    if (!asker_.yes("Change how it is used", false)) return;
    set_in("dynamo_config", "dynamo_mode", {choice("In which mode?", {"default", "reduce-overhead", "max-autotune"})});
    set_in("dynamo_config", "dynamo_use_fullgraph", {asker_.yes("Must the model be one graph", false)});
    set_in("dynamo_config", "dynamo_use_dynamic", {asker_.yes("May shapes change", false)});
    set_in("dynamo_config", "dynamo_use_regional_compilation", {asker_.yes("Compile repeated blocks once", false)});
  }

  void way_of_training() {
    std::vector<std::string> ways = {"data parallelism (DDP)", "DeepSpeed", "FSDP"};
    if (type_ == "MULTI_GPU") ways.push_back("Megatron-LM");
    const size_t way = asker_.choose("How shall it train?", ways);
    if (way == 1) deepspeed();
    if (way == 2) fsdp();
    if (way == 3) megatron();
  }

  void deepspeed() {
    type_ = "DEEPSPEED";
    const char* section = "deepspeed_config";
    if (asker_.yes("Is there a configuration file of DeepSpeed's", false)) {
      set_in(section, "deepspeed_config_file", {asker_.ask("Its path")});
    } else {
      const int64_t stage = static_cast<int64_t>(asker_.choose("Which stage of ZeRO?", {"0", "1", "2", "3"}, 2));
      set_in(section, "zero_stage", {stage});
      if (stage >= 2) {
        set_in(section, "offload_optimizer_device",
               {place("Where does the optimizer state lie?", "offload_optimizer_nvme_path")});
        set_in(section, "offload_param_device", {place("Where do parameters lie?", "offload_param_nvme_path")});
      }
      set_in(section, "gradient_accumulation_steps", {asker_.number("Batches to a step", 1, {.least = 1})});
      if (asker_.yes("Clip gradients", false)) {
        set_in(section, "gradient_clipping", {asker_.real("The largest norm of all together", 1.0, 0.0)});
      }
      if (stage == 3) set_in(section, "zero3_save_16bit_model", {asker_.yes("Save whole models in 16 bits", false)});
    }
    set_in(section, "zero3_init_flag", {asker_.yes("Build models in shards (stage 3)", false)});
    if (asker_.yes("Does the model have mixture-of-experts layers", false)) {
      set_in(section, "deepspeed_moe_layer_cls_names", {asker_.need("Their classes, separated by commas")});
    }
    if (num_machines_ > 1) deepspeed_machines(section);
  }

  // A device, and the folder on it where it is NVMe.
  std::string place(const std::string& question, const char* path_key) {
    std::string device = choice(question, {"none", "cpu", "nvme"});
    if (device == "nvme") set_in("deepspeed_config", path_key, {asker_.ask("Folder on the NVMe device", "/nvme")});
    return device;
  }

  void deepspeed_machines(const char* section) {
    const std::string launcher =
        choice("What starts it on the other machines?", {"standard", "pdsh", "openmpi", "slurm"});
    set_in(section, "deepspeed_multinode_launcher", {launcher});
    if (launcher == "standard") return;  // a command on each machine
    set_in(section, "deepspeed_hostfile", {asker_.need("Its hostfile")});
    const std::string without = asker_.ask("Machines or GPUs to leave out, such as node2:0,1 (empty: none)");
    if (!without.empty()) {
      set_in(section, "deepspeed_exclusion_filter", {without});
      return;
    }
    const std::string only = asker_.ask("Machines or GPUs to use, such as node1@node2:0,1 (empty: all)");
    if (!only.empty()) set_in(section, "deepspeed_inclusion_filter", {only});
  }

  void fsdp() {
    type_ = "FSDP";
    const char* section = "fsdp_config";
    const int64_t version = asker_.choose("Which version of FSDP?", {"1", "2"}, 1) == 0 ? 1 : 2;
    set_in(section, "fsdp_version", {version});
    if (version == 1) {
      set_in(section, "fsdp_reshard_after_forward",
             {choice("What is sharded?",
                     {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"})});
    } else {
      set_in(section, "fsdp_reshard_after_forward", {asker_.yes("Give parameters back after forward", true)});
    }
    set_in(section, "fsdp_offload_params", {asker_.yes("Keep parameters and gradients in host memory", false)});
    const std::string policy = choice("How are units made?", {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"});
    set_in(section, "fsdp_auto_wrap_policy", {policy});
    if (policy == "TRANSFORMER_BASED_WRAP") {
      const std::string classes = asker_.ask("Classes that make a unit, separated by commas (empty: the model says)");
      if (!classes.empty()) set_in(section, "fsdp_transformer_layer_cls_to_wrap", {classes});
    } else if (policy == "SIZE_BASED_WRAP") {
      set_in(section, "fsdp_min_num_params",
             {asker_.number("The smallest unit, in parameters", 100000000, {.least = 1})});
    }
    if (version == 1) {
      set_in(section, "fsdp_backward_prefetch",
             {choice("What is gathered early in backward?", {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"})});
      set_in(section, "fsdp_forward_prefetch", {asker_.yes("Gather the next unit early in forward", false)});
      set_in(section, "fsdp_use_orig_params", {asker_.yes("Keep the original parameters", true)});
    }
    set_in(section, "fsdp_state_dict_type",
           {choice("In which form is a state saved?", {"SHARDED_STATE_DICT", "FULL_STATE_DICT"})});
    const bool efficient = asker_.yes("Does only rank 0 load a checkpoint", true);
    set_in(section, "fsdp_cpu_ram_efficient_loading", {efficient});
    if (version == 1) {
      set_in(section, "fsdp_sync_module_states", {efficient || asker_.yes("Do units take rank 0's values", true)});
    }
    set_in(section, "fsdp_activation_checkpointing", {asker_.yes("Compute activations again in backward", false)});
    if (version == 2 && asker_.yes("Use several kinds of parallelism at once", false)) parallelism();
  }

  void parallelism() {
    const std::pair<const char*, const char*> sizes[] = {{"dp_replicate_size", "Replicas"},
                                                         {"dp_shard_size", "Shards of a replica"},
                                                         {"tp_size", "Tensor parallelism"},
                                                         {"cp_size", "Context parallelism"}};
    for (const auto& [key, question] : sizes) {
      set_in("parallelism_config", std::string("parallelism_config_").append(key),
             {asker_.number(question, 1, {.least = 1})});
    }
  }

  void megatron() {
    type_ = "MEGATRON_LM";
    const char* section = "megatron_lm_config";
    const int64_t tensor = asker_.number("Tensor parallelism", 1, {.least = 1});
    set_in(section, "megatron_lm_tp_degree", {tensor});
    if (tensor > 1) set_in(section, "megatron_lm_sequence_parallelism", {asker_.yes("Split sequences as well", true)});
    const int64_t pipeline = asker_.number("Pipeline parallelism", 1, {.least = 1});
    set_in(section, "megatron_lm_pp_degree", {pipeline});
    if (pipeline > 1)
      set_in(section, "megatron_lm_num_micro_batches", {asker_.number("Micro batches", 1, {.least = 1})});
    set_in(section, "megatron_lm_recompute_activations", {asker_.yes("Compute activations again in backward", true)});
    set_in(section, "megatron_lm_use_distributed_optimizer", {asker_.yes("Shard the optimizer state", true)});
    set_in(section, "megatron_lm_gradient_clipping", {1.0});
  }

  void tpu() {
    set("main_training_function", asker_.ask("The function that each process calls", "main"));
    const bool pod = asker_.yes("Is it a pod of several machines", false);
    set("tpu_use_cluster", pod);
    if (!pod) return;
    set("tpu_name", asker_.ask("Name of the TPU"));
    set("tpu_zone", asker_.ask("Its zone"));
    set("tpu_use_sudo", asker_.yes("Run with sudo there", false));
    const std::string command = asker_.ask("A command to run on each machine first (empty: none)");
    if (!command.empty()) set("commands", Value::list({command}));
  }

  void processes() {
    const bool one = type_ == "NO";
    const Range range{.least = num_machines_, .multiple_of = num_machines_};
    set("num_processes", one ? int64_t{1} : asker_.number("How many processes, on all machines", num_machines_, range));
    if (cpu() || type_ == "XLA") return;
    set("gpu_ids", asker_.ask("Which GPUs of this machine", "all"));
    set("enable_cpu_affinity", asker_.yes("Bind processes to the cores near their GPUs", false));
  }

  bool cpu() const { return values_.at("use_cpu").as_bool(); }

  void precision() {
    set("mixed_precision",
        precision_.empty() ? choice("What shall it compute in?", {"no", "fp16", "bf16", "fp8"}) : precision_);
  }

  Asker& asker_;
  Value values_ = Value::map();
  const std::string precision_;  // given before; else empty
  std::string type_;
  int64_t num_machines_ = 1;
};

}  // namespace

Value interview(Asker& asker, const std::string& precision) {
  Interview questions(asker, precision);
  const size_t where = asker.choose("Where shall it run?", {"machines of your own", "Amazon SageMaker"});
  return where == 0 ? questions.on_this_machine() : questions.on_sagemaker();
}

}  // namespace hasten::cli
