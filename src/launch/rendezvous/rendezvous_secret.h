// The secret that launchers of one run share.
#pragma once

#include "hasten/core/env.h"
#include "hasten/core/hmac.h"

namespace hasten::launcher {

/// It comes from the file that HASTEN_RDZV_SECRET_FILE names, else from HASTEN_RDZV_SECRET. If neither is set and all
/// launchers are on one machine, the first of them makes a file with it for this user only.
class RunSecret {
 public:
  /// For the run `run_id`; `port` distinguishes runs without an id on one machine. Throws: UsageError if there is none,
  /// it is too short, or others can read its file.
  RunSecret(const Environment& environment, const std::string& run_id, int port, bool one_machine);

  /// Returns the proof of the secret: a key for this run only.
  const Bytes& run_key() const { return run_key_; }

  /// Removes the file that was made. For the host, when the run is over.
  void remove() const;

 private:
  std::string made_file_;
  Bytes run_key_;
};

/// Variables that hold secrets of the rendezvous; workers do not get them.
inline constexpr const char* kSecretVariables[] = {"HASTEN_RDZV_SECRET", "HASTEN_ETCD_USER"};

}  // namespace hasten::launcher
