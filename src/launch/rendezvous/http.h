// The kind of HTTP request that the etcd gateway takes: JSON in, JSON out.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "hasten/launch/rendezvous/rendezvous_conf.h"

namespace hasten::launcher {

struct HttpAnswer {
  int status = 0;          ///< 200 …; 0 if there was no answer
  std::string text = {};   ///< the body
  std::string error = {};  ///< why there was none
};

struct HttpRequest {
  std::string url = {};
  std::string body = {};
  std::string authorization = {};  ///< the header of this name; "": none
};

/// POSTs. Blocks: at most for its limit.
using HttpPost = std::function<HttpAnswer(const HttpRequest& request)>;

/// Over http::Client, which loads libcurl now and not when the command starts. Throws: UsageError as that.
HttpPost make_http_post(std::chrono::milliseconds timeout, const EtcdAccess& access);

}  // namespace hasten::launcher
