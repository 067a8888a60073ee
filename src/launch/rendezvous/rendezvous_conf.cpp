// See rendezvous_conf.h.
#include "hasten/launch/rendezvous/rendezvous_conf.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

// torchrun's keys that have nothing to set here: there is no store, closing takes no time.
const std::set<std::string> kIgnored = {"close_timeout", "read_timeout", "is_host",    "store_type",
                                        "use_libuv",     "heartbeat",    "etcd_prefix"};

const std::vector<std::string> kKeys = {
    "join_timeout", "last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt", "protocol", "cacert", "cert",
    "key"};

// torchrun's backends have different names for the same.
std::string one_name_of(const std::string& key) {
  if (key == "timeout") return "join_timeout";
  if (key == "ca_cert") return "cacert";
  if (key == "ssl_cert") return "cert";
  return key == "ssl_cert_key" ? "key" : key;
}

class RendezvousConfReader {
 public:
  explicit RendezvousConfReader(std::vector<std::string>& problems) : problems_(problems) {}

  RendezvousConf read(const std::string& conf) {
    for (const std::string& pair : core::split(conf, ',')) {
      const size_t equals = std::min(pair.find('='), pair.size());
      take(pair.substr(0, equals), equals < pair.size() ? pair.substr(equals + 1) : "");
    }
    check();
    return conf_;
  }

 private:
  void take(const std::string& given, const std::string& value) {
    const std::string key = one_name_of(given);
    if (kIgnored.count(key) != 0) return;
    RendezvousSettings& settings = conf_.settings;
    if (key == "join_timeout") {
      take_number(given, value, settings.join_timeout);
    } else if (key == "last_call_timeout") {
      take_number(given, value, settings.last_call_timeout);
    } else if (key == "keep_alive_interval") {
      take_number(given, value, settings.keep_alive_interval);
    } else if (key == "keep_alive_max_attempt") {
      Seconds number(settings.keep_alive_max_attempt);
      take_number(given, value, number);
      settings.keep_alive_max_attempt = static_cast<int>(number.count());
    } else if (key == "protocol") {
      conf_.etcd.tls = value == "https";
      if (value != "http" && value != "https") complain(text("protocol=", value, " is neither http nor https"));
    } else if (key == "cacert") {
      conf_.etcd.authority = value;
    } else if (key == "cert") {
      conf_.etcd.certificate = value;
    } else if (key == "key") {
      conf_.etcd.key = value;
    } else {
      complain(text("'", given, "' is not one of ", join(kKeys), did_you_mean(given, kKeys)));
    }
  }

  void take_number(const std::string& key, const std::string& word, Seconds& taken) {
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool whole = error == std::errc() && end == word.data() + word.size() && !word.empty();
    if (!whole || !std::isfinite(number) || number < 0 || number > 1e9) {
      return complain(text(key, "=", word, " is no number between 0 and 1e9"));
    }
    taken = Seconds(number);
  }

  void check() {
    const RendezvousSettings& settings = conf_.settings;
    if (settings.join_timeout.count() <= 0) complain("join_timeout=0 is no time; expected seconds above 0");
    if (settings.keep_alive_interval.count() <= 0 || settings.keep_alive_max_attempt < 2) {
      complain(text("keep_alive_interval=", settings.keep_alive_interval.count(),
                    " and keep_alive_max_attempt=", settings.keep_alive_max_attempt,
                    " would lose every node; expected more than 0 seconds and at least 2 attempts"));
    }
    const EtcdAccess& etcd = conf_.etcd;
    const bool names_files = !etcd.authority.empty() || !etcd.certificate.empty() || !etcd.key.empty();
    if (names_files && !etcd.tls) complain("cacert, cert and key need protocol=https");
    if (etcd.certificate.empty() != etcd.key.empty()) complain("cert and key need each other");
  }

  void complain(const std::string& what) { problems_.push_back("--rdzv_conf: " + what); }

  RendezvousConf conf_;
  std::vector<std::string>& problems_;
};

}  // namespace

RendezvousConf read_rendezvous_conf(const std::string& conf, std::vector<std::string>& problems) {
  return RendezvousConfReader(problems).read(conf);
}

}  // namespace hasten::launcher
