// Requests to etcd through core's HTTP client; see http.h.
#include "launch/rendezvous/http.h"

#include "hasten/core/http.h"

namespace hasten::launcher {

HttpPost make_http_post(std::chrono::milliseconds timeout, const EtcdAccess& access) {
  const auto client = std::make_shared<http::Client>(http::ClientOptions{.needed_by = "--rdzv_backend etcd",
                                                                         .connect_timeout = timeout,
                                                                         .timeout = timeout,
                                                                         .use_proxy = false,  // etcd is in the cluster
                                                                         .authority = access.authority,
                                                                         .certificate = access.certificate,
                                                                         .key = access.key});
  return [client](const HttpRequest& request) {
    http::Request post{.method = "POST", .url = request.url, .body = request.body};
    if (!request.authorization.empty()) post.headers.emplace_back("Authorization", request.authorization);
    http::Response response = client->send(post);
    return HttpAnswer{response.status, std::move(response.body), std::move(response.error)};
  };
}

}  // namespace hasten::launcher
