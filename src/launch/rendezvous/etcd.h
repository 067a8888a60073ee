// A claim in etcd (version 3, through its HTTP gateway): one key, which one launcher of a run holds at a
// time.
//
// The key belongs to a lease that is renewed, so it vanishes with its holder. The first launcher that creates it holds
// it. https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway has the requests.
#pragma once

#include <optional>
#include <string>

#include "launch/rendezvous/http.h"

namespace hasten::launcher {

struct EtcdClaimOptions {
  std::string url = {};  ///< "http://etcd:2379"
  std::string key = {};
  std::string user = {};  ///< "name:password" if the server requires a user; "": it does not
  int ttl_s = 5;          ///< the key vanishes this many seconds after the last call of `refresh`
};

class EtcdClaim {
 public:
  EtcdClaim(HttpPost post, EtcdClaimOptions options) : post_(std::move(post)), options_(std::move(options)) {}

  /// Renews the claim, and makes it with `value` if the key has no holder. Returns the holder's value; nothing if the
  /// server did not answer (see error). Blocks: for up to three requests.
  std::optional<std::string> refresh(const std::string& value);
  /// Returns the value of the key's holder, "" if there is none. Nothing if the server did not answer.
  std::optional<std::string> look();
  /// Gives the key back, if it is held.
  void release();

  /// Why the last call returned nothing.
  const std::string& error() const { return error_; }

 private:
  std::optional<std::string> request(const std::string& path, const std::string& body);
  bool log_in();
  bool keep_lease();

  HttpPost post_;
  const EtcdClaimOptions options_;
  std::string token_;  // of the user, "" if there is none yet
  std::string lease_;  // its number, "" if there is none
  std::string error_;
};

}  // namespace hasten::launcher
