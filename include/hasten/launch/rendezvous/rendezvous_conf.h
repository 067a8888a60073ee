// Reads --rdzv_conf: one reader for all kinds of runs, with torchrun's keys.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/rendezvous/rendezvous.h"

namespace hasten::launcher {

/// How an etcd server is spoken to.
struct EtcdAccess {
  bool tls = false;
  std::string authority = {};  ///< PEM file of the authority of the server's certificate; "": the system's authorities
  std::string certificate = {};  ///< PEM files by which this client is known to the server; "": by none
  std::string key = {};
};

struct RendezvousConf {
  RendezvousSettings settings = {};
  EtcdAccess etcd = {};
};

/// Reads "join_timeout=60,last_call_timeout=5"; missing keys have their defaults. `problems` takes a sentence for each
/// unknown key (with "did you mean"), each value of a wrong form, and each contradiction.
RendezvousConf read_rendezvous_conf(const std::string& conf, std::vector<std::string>& problems);

}  // namespace hasten::launcher
