// Accelerate's variables; see accelerate_environment.h.
#include "launch/plan/accelerate_environment.h"

#include <algorithm>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/strings.h"
#include "launch/base/python_number.h"

namespace hasten::launcher {
namespace {

using Variables = std::map<std::string, std::string>;

using core::lower;
using core::upper;

// Fills the variables group by group.
class AccelerateVariables {
 public:
  AccelerateVariables(const Environment& inherited, const LaunchSettings& settings, const RunPlan& plan,
                      const Machine& machine)
      : inherited_(inherited), settings_(settings), plan_(plan), machine_(machine), variables_(inherited.variables()) {}

  Environment all() {
    common();
    compiler();
    threads();
    devices();
    if (settings_.on("use_fsdp")) fsdp();
    if (settings_.on("use_megatron_lm")) megatron();
    if (settings_.on("use_parallelism_config")) parallelism();
    if (settings_.on("use_deepspeed")) deepspeed();
    if (settings_.text("mixed_precision") == "fp8") fp8();
    if (settings_.on("tpu")) tpu();
    return Environment::of(std::move(variables_));
  }

 private:
  void set(const std::string& name, std::string value) { variables_[name] = std::move(value); }

  // All of a section of the configuration file, in the form that `written` gives the values.
  template <class Written>
  void hand_on_section(std::string_view section, const Written& written) {
    for (const Setting& setting : settings_.all()) {
      if (setting.option->section != section || setting.values.empty()) continue;
      set(variables_of(*setting.option).front(), written(setting));
    }
  }

  // Reals as Python writes them: 1 is 1.0.
  std::string number_text(const Setting& setting) const {
    if (setting.option->kind != OptionKind::kReal) return setting.values.back();
    return python_repr(*settings_.real(setting.option->name));
  }

  static std::string flag_text(bool on) { return on ? "True" : "False"; }

  void common() {
    set("ACCELERATE_MIXED_PRECISION", lower(*settings_.text("mixed_precision")));
    const bool cpu = settings_.on("cpu");
    set("ACCELERATE_USE_CPU", flag_text(cpu));
    if (cpu) {
      set("KMP_AFFINITY", "granularity=fine,compact,1,0");
      set("KMP_BLOCKTIME", "1");
    }
    if (settings_.on("debug")) set("ACCELERATE_DEBUG_MODE", "true");
    if (settings_.on("enable_cpu_affinity")) set("ACCELERATE_CPU_AFFINITY", "1");
  }

  void compiler() {
    set("ACCELERATE_DYNAMO_BACKEND", upper(*settings_.text("dynamo_backend")));
    set("ACCELERATE_DYNAMO_MODE", *settings_.text("dynamo_mode"));
    for (const char* name : {"dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation"}) {
      set("ACCELERATE_" + upper(name), flag_text(settings_.on(name)));
    }
  }

  // Counts as Accelerate does: cores / workers on the CPU, one otherwise. If torchrun's nproc_per_node chose the
  // workers, it counts as torchrun does, which leaves a lone worker free. The user's settings stay.
  void threads() {
    const auto requested = settings_.text("num_cpu_threads_per_process");
    const bool chosen = settings_.of("num_cpu_threads_per_process").source >= Source::kConfig;
    if (chosen) {
      const int share = machine_.num_physical_cores() / plan_.num_local_processes;
      set("OMP_NUM_THREADS", *requested == "auto" ? text(std::max(1, share)) : *requested);
    } else if (inherited_.has("OMP_NUM_THREADS") &&
               !(settings_.on("cpu") && inherited_.text("OMP_NUM_THREADS") == "0")) {
      return;
    } else if (settings_.on("cpu")) {
      set("OMP_NUM_THREADS", text(std::max(1, machine_.num_physical_cores() / workers_beside())));
    } else if (!settings_.has("nproc_per_node") || plan_.num_local_processes > 1) {
      set("OMP_NUM_THREADS", "1");
    }
  }

  int workers_beside() const {
    if (plan_.max_machines > 1) return plan_.num_local_processes;  // an MPI started launchers, not workers
    for (const char* name : {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}) {
      // A negative number stands for none, as with Accelerate.
      if (const auto workers = inherited_.integer(name); workers && *workers > 0) return static_cast<int>(*workers);
    }
    return plan_.num_local_processes;
  }

  void devices() {
    const auto ids = settings_.text("gpu_ids");
    if (!ids || *ids == "all") return;
    static const Variables variable_of_type = {
        {"MULTI_XPU", "ZE_AFFINITY_MASK"},          {"MULTI_MLU", "MLU_VISIBLE_DEVICES"},
        {"MULTI_SDAA", "SDAA_VISIBLE_DEVICES"},     {"MULTI_MUSA", "MUSA_VISIBLE_DEVICES"},
        {"MULTI_NPU", "ASCEND_RT_VISIBLE_DEVICES"}, {"MULTI_HPU", "HABANA_VISIBLE_MODULES"},
        {"MULTI_NEURON", "NEURON_RT_VISIBLE_CORES"}};
    const auto found = variable_of_type.find(settings_.distributed_type());
    if (found != variable_of_type.end()) set(found->second, *ids);
    set("CUDA_VISIBLE_DEVICES", *ids);
  }

  void fsdp() {
    set("ACCELERATE_USE_FSDP", "true");
    hand_on_section("fsdp_config", [](const Setting& setting) {
      const bool fold =
          setting.option->kind == OptionKind::kFlag || setting.option->name == "fsdp_reshard_after_forward";
      return fold ? lower(setting.values.back()) : setting.values.back();
    });
  }

  void megatron() {
    set("ACCELERATE_USE_MEGATRON_LM", "true");
    hand_on_section("megatron_lm_config", [this](const Setting& setting) {
      // Flags with a default are Python's to the peer, those without are the words as they were typed.
      const bool python = setting.option->kind == OptionKind::kFlag && !setting.option->fallback.empty();
      return python ? flag_text(settings_.on(setting.option->name)) : number_text(setting);
    });
  }

  void parallelism() {
    set("ACCELERATE_USE_PARALLELISM_CONFIG", "true");
    const bool context = settings_.integer("parallelism_config_cp_size").value_or(1) > 1;
    const bool sequence = settings_.integer("parallelism_config_sp_size").value_or(1) > 1;
    hand_on_section("parallelism_config", [this](const Setting& setting) {
      return setting.option->kind == OptionKind::kFlag ? flag_text(settings_.on(setting.option->name))
                                                       : setting.values.back();
    });
    if (!settings_.has("parallelism_config_sp_seq_length")) set("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None");
    // Variables of a kind of parallelism that is not used are left out, as with the peer.
    if (!context) variables_.erase("PARALLELISM_CONFIG_CP_COMM_STRATEGY");
    for (const char* name : {"SEQ_LENGTH", "SEQ_LENGTH_IS_VARIABLE", "ATTN_IMPLEMENTATION"}) {
      if (!sequence) variables_.erase(text("PARALLELISM_CONFIG_SP_", name));
    }
  }

  void deepspeed() {
    set("ACCELERATE_USE_DEEPSPEED", "true");
    std::vector<std::string> fields = settings_.deepspeed_keys();
    if (settings_.of("mixed_precision").source == Source::kConfig) fields.push_back("mixed_precision");
    set("ACCELERATE_CONFIG_DS_FIELDS", lower(join(fields, ",")));
    const auto path = inherited_.text("PYTHONPATH");
    set("PYTHONPATH", path ? text(*path, ":", machine_.folder) : machine_.folder);
    for (const Setting& setting : settings_.all()) {
      const bool handed = setting.option->section == "deepspeed_config" && !variables_of(*setting.option).empty();
      if (!handed || setting.values.empty()) continue;
      const bool as_typed = setting.option->kind != OptionKind::kFlag;
      set(variables_of(*setting.option).front(), as_typed ? number_text(setting) : lower(setting.values.back()));
    }
  }

  void fp8() {
    hand_on_section("fp8_config", [this](const Setting& setting) {
      const bool flag = setting.option->kind == OptionKind::kFlag || setting.option->kind == OptionKind::kSwitch;
      return flag ? flag_text(settings_.on(setting.option->name)) : setting.values.back();
    });
    set("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", flag_text(settings_.on("fp8_use_autocast_during_eval")));
    variables_.erase("ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION");
    std::string words = *settings_.text("fp8_override_linear_precision");
    std::erase_if(words, [](char letter) { return letter == '(' || letter == ')' || letter == ' '; });
    std::istringstream flags(words);
    for (const char* gradient : {"FPROP", "DGRAD", "WGRAD"}) {
      std::string word;
      std::getline(flags, word, ',');
      const bool on = lower(word) == "true" || word == "1" || lower(word) == "yes";
      set(text("ACCELERATE_FP8_OVERRIDE_", gradient), flag_text(on));
    }
  }

  void tpu() {
    if (settings_.text("mixed_precision") != "bf16") return;
    set(settings_.on("downcast_bf16") ? "XLA_DOWNCAST_BF16" : "XLA_USE_BF16", "1");
  }

  const Environment& inherited_;
  const LaunchSettings& settings_;
  const RunPlan& plan_;
  const Machine& machine_;
  Variables variables_;
};

}  // namespace

Environment accelerate_environment(const Environment& inherited, const LaunchSettings& settings, const RunPlan& plan,
                                   const Machine& machine) {
  return AccelerateVariables(inherited, settings, plan, machine).all();
}

}  // namespace hasten::launcher
