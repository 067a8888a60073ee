// A group of all ranks by an address, as torch.distributed's init_process_group(init_method=…) makes it.
//
// `process::Process` does this from the environment, for programs that a launcher starts. Here the program says itself
// where the ranks meet: `tcp://10.0.0.1:23456`, `file:///shared/job`, or `env://`.
#pragma once

#include <optional>
#include <string>

#include "hasten/comm/group/group.h"
#include "hasten/core/env.h"

namespace hasten::comm {

/// A parsed address.
struct InitMethod {
  enum class Kind { kEnvironment, kTcp, kFile } kind = Kind::kEnvironment;
  std::string host = {};
  int port = 0;
  std::string path = {};
  /// The values of "?rank=0&world_size=2" behind the address.
  std::optional<int> rank = {}, world_size = {};
};

/// Parses an address. Throws: UsageError for another scheme, a missing port or path, or an
/// unknown parameter.
InitMethod parse_init_method(const std::string& address);

struct InitOptions {
  /// Unset: of the address, else RANK and WORLD_SIZE with env://.
  std::optional<int> rank = {}, world_size = {};
  GroupOptions group = {};
};

/// Returns the group of all ranks that call with this address.
/// - tcp://HOST:PORT: rank 0 serves the store there; HOST is an address of its machine.
/// - file:///PATH: a file on a file system that all reach. It must be new; the last user removes it.
/// - env://: MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. With TORCHELASTIC_USE_AGENT_STORE a launcher serves.
/// Collective: yes. Blocks: until all ranks have come. Throws: UsageError for a rank or size that is not given, given
/// twice with different values, or for variables that are not set; as Store and Group::connect.
Group init_group(const std::string& address, const InitOptions& options = {},
                 const Environment& environment = Environment::current());

}  // namespace hasten::comm
