// HTTP: one client over libcurl, which is loaded when the first client is made.
//
// Linked, libcurl and its dependencies would take several times as long to load as a command takes to start. A build
// without libcurl's headers has the stub, whose client throws. A failed transfer is a value, not an exception, since
// each caller retries by rules of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hasten::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct ClientOptions {
  /// Appears in errors: "--rdzv_backend etcd", "the MLflow tracker".
  std::string needed_by = "HTTP";
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);
  /// Limit of a whole request; 0: none (large files; stall_timeout ends requests without progress).
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
  /// Ends a request that moves less than one byte a second for so long; 0: never.
  std::chrono::seconds stall_timeout = {};
  /// Whether the system's proxy variables (https_proxy, no_proxy …) count.
  bool use_proxy = true;
  bool follow_redirects = false;
  /// PEM file of trusted certificates; "": those of the system. PEM files of this client; "": none.
  std::string authority = {};
  std::string certificate = {};
  std::string key = {};
  /// false: certificates of the server are not checked.
  bool verify = true;
  /// A longer body ends the request with an error, unless Request::on_data takes it.
  size_t max_body_bytes = 1 << 20;
  std::string user_agent = "hasten";
  /// Called about ten times a second while a request runs; true ends it.
  std::function<bool()> cancelled = {};
};

struct Request {
  std::string method = "GET";
  std::string url = {};
  /// Sent as they are; an empty value leaves out a header that libcurl adds by itself.
  Headers headers = {};
  std::string body = {};
  /// If not empty, the body is this file's contents.
  std::filesystem::path body_file = {};
  /// Takes the body of an answer with a status from 200 to 299 piece by piece, in place of Response::body. Returning
  /// false ends the request.
  std::function<bool(std::string_view)> on_data = {};
};

struct Response {
  /// 200 …; 0 if there was no answer.
  int status = 0;
  std::string body = {};
  /// Headers of the last answer (after redirects); names in lower case.
  Headers headers = {};
  /// Why there was no answer; "" if there was one.
  std::string error = {};
  /// The address that answered, after redirects.
  std::string url = {};

  /// Returns the first header of that name (lower case), "" if it is not there.
  std::string header(std::string_view name) const;
  bool ok() const noexcept { return status >= 200 && status < 300; }
};

/// Sends requests one after the other and keeps connections open between them. Not for several threads at once.
class Client {
 public:
  /// Loads libcurl. Throws: UsageError if it is not there, or hasten was built without it.
  explicit Client(ClientOptions options = {});
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  /// Sends one request. Blocks: up to the limits of the options. Throws: DataError if body_file cannot be read; what
  /// on_data throws ends the request with its text as error.
  Response send(const Request& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the value of an Authorization header: "Basic …".
std::string basic_authorization(std::string_view user, std::string_view password);

/// Returns `text` with every byte but letters, digits and "-._~" as %XX. `keep` names further bytes that stay ("/").
std::string percent_encoded(std::string_view text, std::string_view keep = "");

}  // namespace hasten::http
