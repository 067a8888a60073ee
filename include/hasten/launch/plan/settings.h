// Every setting of a run with its value and its source. The first source that has a value counts: option, configuration
// file, environment, cluster, default.
//
// A pure function of these sources, so that each rule is tested without a file or a process. Whether the
// settings fit together is run_plan.h's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/launch/config/config_file.h"
#include "hasten/launch/discovery/cluster.h"
#include "hasten/launch/options/command_line.h"

namespace hasten::launcher {

/// From the weakest to the strongest.
enum class Source { kDefault, kCluster, kEnvironment, kConfig, kOption };

struct Setting {
  const Option* option = nullptr;
  std::vector<std::string> values = {};  ///< as Python's str() writes them; empty: not set
  Source source = Source::kDefault;
  std::string origin = "default";  ///< for the user: "option -n", "c.yaml: num_processes", "FSDP_VERSION"
};

class LaunchSettings {
 public:
  /// All of them, in the order of launch_options(). `config` may be null.
  LaunchSettings(const CommandLine& line, const Config* config, const Environment& environment);

  /// Takes the cluster's values where no other source has one. A machine's rank in a file that all machines read
  /// becomes a problem if the cluster has another one.
  void take(const Cluster& cluster);

  /// Throws: InternalError if there is no option of this name (of all functions here).
  const Setting& of(std::string_view name) const;
  bool has(std::string_view name) const { return !of(name).values.empty(); }
  /// Returns the value, nothing if it is not set.
  std::optional<std::string> text(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> real(std::string_view name) const;
  /// Returns true if a switch or flag is on; false if it is not set.
  bool on(std::string_view name) const;

  const std::vector<Setting>& all() const noexcept { return settings_; }
  /// distributed_type of the configuration file, "" without one.
  const std::string& distributed_type() const noexcept { return distributed_type_; }
  /// Returns the keys that the configuration file gives to DeepSpeed, in its order.
  const std::vector<std::string>& deepspeed_keys() const noexcept { return deepspeed_keys_; }
  bool from_config() const noexcept { return from_config_; }
  bool on_sagemaker() const noexcept { return on_sagemaker_; }
  /// Treats the options of these names as a configuration file's. Throws: InternalError if one is no option's.
  void came_from_file(const std::vector<std::string>& names);

  /// Values that do not fit their setting, each a sentence without its full stop.
  const std::vector<std::string>& problems() const noexcept { return problems_; }

 private:
  Setting& find(std::string_view name);
  void take_option(Setting& setting, const GivenOption& given);
  void take_config(Setting& setting, const Config& config);
  void take_environment(Setting& setting, const Environment& environment);
  void take_found(const FoundValue& found, const std::string& cluster);
  void choose_paradigm(const Config& config);

  std::vector<Setting> settings_;
  std::vector<std::string> deepspeed_keys_, problems_;
  std::string distributed_type_;
  bool from_config_ = false, on_sagemaker_ = false;
};

/// Returns the variables that can set this option, the strongest first: PET_… for torchrun's, otherwise those in which
/// Accelerate hands it on.
std::vector<std::string> variables_of(const Option& option);

}  // namespace hasten::launcher
