// In place of curl.cpp where hasten was built without libcurl.
#include "hasten/core/error.h"
#include "hasten/core/http.h"

namespace hasten::http {

struct Client::Impl {};

Client::Client(ClientOptions options) {
  throw UsageError(
      Origin{"http"}, options.needed_by,
      " needs libcurl, without which this hasten was built. Install libcurl4-openssl-dev and build it again.");
}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Response Client::send(const Request&) {
  return {};
}

}  // namespace hasten::http
