// See endpoint.h.
#include "endpoint.h"

#include <charconv>

#include "hasten/core/error.h"

namespace hasten::launcher {

Endpoint parse_endpoint(const std::string& word, int default_port) {
  const size_t bracket = word.rfind(']');
  const size_t colon = word.rfind(':');
  const bool has_port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  Endpoint endpoint{has_port ? word.substr(0, colon) : word, default_port};
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']'))
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  if (!has_port) return endpoint;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data() + colon + 1, end, endpoint.port);
  if (error != std::errc() || stop != end || endpoint.port < 0 || endpoint.port > 65535) {
    throw UsageError({"launch"}, "--rdzv_endpoint: '", word,
                     "' has no port between 0 and 65535 behind the colon.");
  }
  return endpoint;
}

}  // namespace hasten::launcher
