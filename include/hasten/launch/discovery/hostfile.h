// The machines that a run shall start itself on: DeepSpeed's hostfile and its filters.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/discovery/node_list.h"

namespace hasten::launcher {

/// A machine of the run, and which of its slots (0 …) the run uses. A slot is a GPU where there are GPUs.
struct ChosenHost {
  std::string name = {};
  std::vector<int> slots = {};
  bool named = false;  ///< a filter names slots, so that the others must stay free
  bool operator==(const ChosenHost&) const = default;
};

/// Returns the lines of a hostfile, "node1 slots=4"; what follows # is a comment. `path` is for messages. Throws:
/// UsageError for any other line, a machine that is there twice, or none at all.
std::vector<Host> read_hostfile(const std::string& content, const std::string& path);

/// Applies DeepSpeed's filters: "node1@node2:0,2" is all of node1 and slots 0 and 2 of node2. At most one of the two is
/// given; without any, all is left. Throws: UsageError if both are given, if a filter names a machine or slot that does
/// not exist, or if nothing is left.
std::vector<ChosenHost> choose_hosts(const std::vector<Host>& hosts, const std::string& include,
                                     const std::string& exclude);

}  // namespace hasten::launcher
