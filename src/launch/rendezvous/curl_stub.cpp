// In place of curl.cpp where hasten was built without libcurl.
#include "hasten/core/error.h"
#include "launch/rendezvous/http.h"

namespace hasten::launcher {

HttpPost make_http_post(std::chrono::milliseconds, const EtcdAccess&) {
  throw UsageError({"launch"},
                   "this hasten was built without libcurl, which --rdzv_backend etcd needs. Install "
                   "libcurl4-openssl-dev and build it again, or use --rdzv_backend c10d.");
}

}  // namespace hasten::launcher
