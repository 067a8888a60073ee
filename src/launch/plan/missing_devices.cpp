// See missing_devices.h.
#include "hasten/launch/plan/missing_devices.h"

#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

// "--tpu", or "distributed_type XLA (c.yaml)".
std::string named_setting(const LaunchSettings& settings, const char* name) {
  const Setting& setting = settings.of(name);
  if (setting.source == Source::kOption) return text("--", name);
  if (setting.source == Source::kConfig && setting.origin.ends_with("distributed_type")) {
    return text("distributed_type ", settings.distributed_type(), " (",
                setting.origin.substr(0, setting.origin.find(':')), ")");
  }
  return text(name, " (", setting.origin, ")");
}

std::string what_there_is(const Machine& machine, const Environment& environment) {
  std::string words = text("it has ", machine.num_cpus(), machine.num_cpus() == 1 ? " CPU" : " CPUs", ", ",
                           machine.num_gpus() == 0 ? "no GPU" : text(machine.num_gpus(), " GPUs"));
  const auto visible = environment.variables().find("CUDA_VISIBLE_DEVICES");
  if (visible != environment.variables().end()) words += text(" (CUDA_VISIBLE_DEVICES='", visible->second, "')");
  for (const std::string& kind : machine.accelerators) words += text(", ", kind);
  return words;
}

}  // namespace

std::vector<std::string> missing_devices(const LaunchSettings& settings, const Machine& machine,
                                         const Environment& environment) {
  std::vector<std::string> missing;
  if (settings.on("cpu")) return missing;
  const auto ask = [&](const char* name, const std::string& kind, bool is_there) {
    if (is_there) return;
    missing.push_back(text(named_setting(settings, name), " asks for ", kind, ", and this machine has none: ",
                           what_there_is(machine, environment), ". Give --cpu to train on the CPU"));
  };
  if (settings.on("tpu")) ask("tpu", "TPUs", machine.accelerators.count("TPU") > 0);
  const std::string& type = settings.distributed_type();
  const bool is_of_gpus = !type.starts_with("MULTI_") || type == "MULTI_GPU";
  const bool names_gpus = settings.has("gpu_ids") && settings.text("gpu_ids").value_or("all") != "all";
  if (!settings.on("multi_gpu")) {
    if (names_gpus && is_of_gpus) {
      ask("gpu_ids", "GPU " + *settings.text("gpu_ids"), machine.num_gpus() > 0 || !machine.accelerators.empty());
    }
    return missing;
  }
  const bool is_others = type.starts_with("MULTI_") && type != "MULTI_GPU" && type != "MULTI_CPU" &&
                         settings.of("multi_gpu").source != Source::kOption;
  const std::string maker = is_others ? type.substr(6) : "";
  ask("multi_gpu", is_others ? maker + " devices" : "GPUs",
      is_others ? machine.accelerators.count(maker) > 0 : machine.num_gpus() > 0);
  return missing;
}

}  // namespace hasten::launcher
