// The settings in --rdzv_conf; see rendezvous.h.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/launch/rendezvous.h"

namespace hasten::launcher {
namespace {

// torchrun's keys that have nothing to set here: there is no store, closing takes no time.
const std::vector<std::string> kIgnored = {"close_timeout", "read_timeout", "is_host",  "store_type",
                                           "use_libuv",     "heartbeat",    "protocol", "etcd_prefix"};

double number_in(const std::string& key, const std::string& word) {
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool whole = error == std::errc() && end == word.data() + word.size() && !word.empty();
  if (!whole || !std::isfinite(number) || number < 0 || number > 1e9) {
    throw UsageError({"launch"}, "--rdzv_conf: ", key, "=", word, " is no number between 0 and 1e9.");
  }
  return number;
}

}  // namespace

RendezvousSettings with_conf(RendezvousSettings settings, const std::string& conf) {
  const std::vector<std::string> keys = {"join_timeout", "last_call_timeout", "keep_alive_interval",
                                         "keep_alive_max_attempt"};
  std::istringstream pairs(conf);
  for (std::string pair; std::getline(pairs, pair, ',');) {
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string key = pair.substr(0, equals);
    const std::string value = equals < pair.size() ? pair.substr(equals + 1) : "";
    if (std::find(kIgnored.begin(), kIgnored.end(), key) != kIgnored.end()) continue;
    if (key != "timeout" && std::find(keys.begin(), keys.end(), key) == keys.end()) {
      throw UsageError({"launch"}, "--rdzv_conf: '", key, "' is not one of ", join(keys),
                       did_you_mean(key, keys));
    }
    const double number = number_in(key, value);
    if (key == "join_timeout" || key == "timeout") settings.join_timeout = Seconds(number);
    if (key == "last_call_timeout") settings.last_call_timeout = Seconds(number);
    if (key == "keep_alive_interval") settings.keep_alive_interval = Seconds(number);
    if (key == "keep_alive_max_attempt") settings.keep_alive_max_attempt = static_cast<int>(number);
  }
  if (settings.keep_alive_interval.count() <= 0 || settings.keep_alive_max_attempt < 2) {
    throw UsageError({"launch"}, "--rdzv_conf: keep_alive_interval=", settings.keep_alive_interval.count(),
                     " and keep_alive_max_attempt=", settings.keep_alive_max_attempt,
                     " would lose every node; expected more than 0 seconds and at least 2 attempts.");
  }
  return settings;
}

}  // namespace hasten::launcher
