// `hasten env`: the facts of the machine and the set-up for a bug report.
//
// hasten is not linked to libtorch: its version is that of the build. The torch that scripts find is the one
// of the python3 of PATH, read from the package's file and not by starting Python.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "commands.h"
#include "hasten/core/env.h"
#include "hasten/core/number.h"
#include "hasten/core/path_search.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "hasten/core/version.h"
#include "hasten/launch/base/machine.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;
using core::Value;

const HelpText kEnvHelp = {
    "hasten env [OPTIONS]",
    "Prints versions, devices, network interfaces, memory and the configuration, for a bug report.", ""};

std::string system_name() {
  utsname name = {};
  uname(&name);
  return text(name.sysname, " ", name.release, " ", name.machine);
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

// "2.13.0+cpu in FOLDER" from the version.py of the first torch package beside a folder of PATH.
std::string torch_of_python(const Environment& environment) {
  for (const std::string& folder : core::path_folders(environment)) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(fs::path(folder).parent_path() / "lib", none)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      const fs::path package = entry.path() / "site-packages/torch";
      std::ifstream version(package / "version.py");
      for (std::string line; std::getline(version, line);) {
        if (!line.starts_with("__version__")) continue;
        const size_t begin = line.find('\'') + 1;
        return text(line.substr(begin, line.find('\'', begin) - begin), " in ", package.string());
      }
    }
  }
  return "none";
}

std::vector<std::string> gpus() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    std::ifstream information(entry.path() / "information");
    for (std::string line; std::getline(information, line);) {
      if (line.starts_with("Model:")) names.push_back(line.substr(line.find_first_not_of(" \t", 6)));
    }
  }
  return names;
}

// Interfaces that are up, with their first address.
Value interfaces() {
  std::map<std::string, std::string> result;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return Value::map();
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP)) continue;
    char address[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, address, sizeof address);
    result.emplace(one->ifa_name, address);
  }
  freeifaddrs(first);
  return Value::Map(result.begin(), result.end());
}

std::string memory() {
  struct sysinfo info = {};
  sysinfo(&info);
  const double unit = static_cast<double>(info.mem_unit) / (1 << 30);
  const auto gibibytes = [&](unsigned long pages) { return core::fixed_text(static_cast<double>(pages) * unit, 1); };
  return gibibytes(info.totalram) + " GiB, " + gibibytes(info.freeram) + " GiB free";
}

Value configuration(const std::optional<launcher::Config>& config) {
  if (!config) return nullptr;
  return Value::map({{"file", config->path}, {"values", Value::parse_json(launcher::to_json(config->values))}});
}

Value facts(const Environment& environment, const std::optional<launcher::Config>& config) {
  const launcher::Machine machine = launcher::this_machine(environment);
  std::set<int> nodes;
  for (const launcher::Cpu& cpu : machine.cpus) nodes.insert(cpu.node);
  Value result = Value::map({{"hasten", version()},
                             {"compiler", compiler()},
                             {"libtorch", HASTEN_LIBTORCH},
                             {"python's torch", torch_of_python(environment)},
                             {"system", system_name()}});
  result["cores"] = text(machine.num_physical_cores(), " (", machine.cpus.size(), " logical) on ", nodes.size(),
                         nodes.size() == 1 ? " NUMA node" : " NUMA nodes");
  result["memory"] = memory();
  result["GPUs"] = gpus();
  result["interfaces"] = interfaces();
  result["configuration"] = configuration(config);
  return result;
}

void print(const std::string& name, const Value& value) {
  if (value.is_string()) {
    std::cout << name << ": " << value.as_string() << "\n";
  } else if (value.empty()) {
    std::cout << name << ": none\n";
  } else if (value.is_list()) {
    std::vector<std::string> names;
    for (const Value& one : value.as_list()) names.push_back(one.as_string());
    std::cout << name << ": " << join(names) << "\n";
  } else if (name == "configuration") {
    std::cout << name << ": " << value.at("file").as_string() << "\n";
    for (const auto& [key, held] : value.at("values").as_map())
      std::cout << "  " << key << ": " << held.to_json() << "\n";
  } else {
    std::cout << name << ":\n";
    for (const auto& [key, held] : value.as_map()) std::cout << "  " << key << ": " << held.as_string() << "\n";
  }
}

}  // namespace

int env(const std::vector<std::string>& words) {
  const launcher::CommandLine line = read_options("env", env_options(), words);
  if (line.help) return std::cout << help_of(kEnvHelp, env_options(), colours_wanted()), 0;
  const Environment environment = Environment::current();
  const Value all = facts(environment, chosen_config(line, environment));
  if (line.has("json")) {
    std::cout << all.to_json(2) << "\n";
    return 0;
  }
  for (const auto& [name, value] : all.as_map()) print(name, value);
  return 0;
}

}  // namespace hasten::cli
