// Lists of machines as schedulers write them: Slurm's compressed names, and files or words with one name for
// each slot.
#pragma once

#include <string>
#include <vector>

namespace hasten::launcher {

/// A machine of a list, and how many processes may run there.
struct Host {
  std::string name = {};
  int num_slots = 1;
  bool operator==(const Host&) const = default;
};

/// "gpu[01-03,7]x[1-2],login2" is gpu01x1 gpu01x2 gpu02x1 … gpu7x2 login2: leading zeros stay, the last
/// bracket counts fastest. Throws: UsageError if it cannot be read so.
std::vector<std::string> expand_node_list(const std::string& node_list);

/// "2(x3),1" is 2 2 2 1. Throws: UsageError if it cannot be read so.
std::vector<int> expand_counts(const std::string& counts);

/// Reads words (or lines) with a name for each slot, as $PBS_NODEFILE and LSB_HOSTS have it. Returns each name with the
/// number of its occurrences, in the order of their first.
std::vector<Host> count_names(const std::string& names);

/// "hostA 4 hostB 8", as LSB_MCPU_HOSTS has it. Throws: UsageError if it cannot be read so.
std::vector<Host> names_with_counts(const std::string& words);

}  // namespace hasten::launcher
