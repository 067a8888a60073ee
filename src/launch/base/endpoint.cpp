// See endpoint.h.
#include "launch/base/endpoint.h"

#include "hasten/core/error.h"
#include "launch/base/whole_number.h"

namespace hasten::launcher {

std::optional<Endpoint> find_endpoint(const std::string& word, int default_port) {
  const size_t bracket = word.rfind(']');
  const size_t colon = word.rfind(':');
  const bool has_port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  Endpoint endpoint{has_port ? word.substr(0, colon) : word, default_port};
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']'))
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  if (!has_port) return endpoint;
  const auto port = whole_number(std::string_view(word).substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) return std::nullopt;
  endpoint.port = *port;
  return endpoint;
}

Endpoint parse_endpoint(const std::string& word, int default_port) {
  if (auto endpoint = find_endpoint(word, default_port)) return *endpoint;
  throw UsageError({"launch"}, "--rdzv_endpoint: '", word, "' has no port between 0 and 65535 behind the colon.");
}

}  // namespace hasten::launcher
