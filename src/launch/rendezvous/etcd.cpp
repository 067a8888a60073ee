// Requests to etcd's gateway and what their answers mean; see etcd.h.
#include "launch/rendezvous/etcd.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hasten/core/base64.h"
#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

constexpr int kUnauthorized = 401;

nlohmann::json parsed(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Returns the first value of a range's answer; "" if there is none.
std::string value_of(const nlohmann::json& range) {
  const auto values = range.find("kvs");
  if (values == range.end() || !values->is_array() || values->empty()) return "";
  return from_base64(values->front().value("value", "")).value_or("");
}

}  // namespace

std::optional<std::string> EtcdClaim::request(const std::string& path, const std::string& body) {
  HttpAnswer answer;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!options_.user.empty() && token_.empty() && !log_in()) return std::nullopt;
    answer = post_({options_.url + path, body, token_});
    if (answer.status != kUnauthorized || options_.user.empty()) break;
    token_.clear();  // it has run out, or the server was started again
  }
  error_ = answer.error;
  if (answer.status == 200) return answer.text;
  if (answer.status != 0) error_ = text("HTTP status ", answer.status, ": ", answer.text.substr(0, 200));
  return std::nullopt;
}

// Returns true if there is a token for the user.
bool EtcdClaim::log_in() {
  const size_t colon = std::min(options_.user.find(':'), options_.user.size());
  const nlohmann::json who = {{"name", options_.user.substr(0, colon)},
                              {"password", options_.user.substr(std::min(colon + 1, options_.user.size()))}};
  const HttpAnswer answer = post_({options_.url + "/v3/auth/authenticate", who.dump(), ""});
  const nlohmann::json granted = parsed(answer.text);
  if (answer.status == 200 && granted.is_object()) token_ = granted.value("token", "");
  if (!token_.empty()) return true;
  error_ = answer.error;
  if (answer.status != 0) {
    error_ = text("user '", options_.user.substr(0, colon), "' cannot log in: HTTP status ", answer.status, ": ",
                  answer.text.substr(0, 200), ". Correct HASTEN_ETCD_USER (name:password)");
  }
  return false;
}

// Returns true if there is a lease, an old or a new one.
bool EtcdClaim::keep_lease() {
  if (!lease_.empty()) {
    const auto answer = request("/v3/lease/keepalive", nlohmann::json({{"ID", lease_}}).dump());
    if (!answer) return false;
    const nlohmann::json kept = parsed(*answer);
    const auto result = kept.is_object() ? kept.find("result") : kept.end();
    const bool alive = result != kept.end() && result->is_object() && result->value("TTL", "0") != "0";
    if (alive) return true;
    lease_.clear();  // it had run out
  }
  const auto answer = request("/v3/lease/grant", nlohmann::json({{"TTL", options_.ttl_s}}).dump());
  if (!answer) return false;
  const nlohmann::json granted = parsed(*answer);
  if (granted.is_object()) lease_ = granted.value("ID", "");
  if (lease_.empty()) error_ = text("it granted no lease: ", answer->substr(0, 200));
  return !lease_.empty();
}

std::optional<std::string> EtcdClaim::refresh(const std::string& value) {
  if (!keep_lease()) return std::nullopt;
  const std::string key = base64(options_.key);
  const nlohmann::json transaction = {
      {"compare", {{{"key", key}, {"target", "CREATE"}, {"create_revision", "0"}, {"result", "EQUAL"}}}},
      {"success", {{{"request_put", {{"key", key}, {"value", base64(value)}, {"lease", lease_}}}}}},
      {"failure", {{{"request_range", {{"key", key}}}}}}};
  const auto answer = request("/v3/kv/txn", transaction.dump());
  if (!answer) return std::nullopt;
  const nlohmann::json done = parsed(*answer);
  if (!done.is_object()) {
    error_ = text("it is no etcd: ", answer->substr(0, 200));
    return std::nullopt;
  }
  if (done.value("succeeded", false)) return value;
  const nlohmann::json range =
      done.value(nlohmann::json::json_pointer("/responses/0/response_range"), nlohmann::json::object());
  return value_of(range);
}

std::optional<std::string> EtcdClaim::look() {
  const auto answer = request("/v3/kv/range", nlohmann::json({{"key", base64(options_.key)}}).dump());
  if (!answer) return std::nullopt;
  const nlohmann::json range = parsed(*answer);
  return range.is_object() ? value_of(range) : "";
}

void EtcdClaim::release() {
  if (!lease_.empty()) request("/v3/lease/revoke", nlohmann::json({{"ID", lease_}}).dump());
  lease_.clear();
}

}  // namespace hasten::launcher
