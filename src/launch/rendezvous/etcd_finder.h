// The etcd backends: the holder of the run's key in etcd is the host, and the key's value is its address.
//
// Requests to etcd wait for answers, so a process of their own makes them (`hasten-etcd` in ps). It holds the claim and
// reports the host. It ends with the launcher, and deletes the key then. When the whole machine is lost the key
// vanishes with its lease.
#pragma once

#include <sys/types.h>

#include <functional>

#include "hasten/launch/rendezvous/rendezvous_conf.h"
#include "launch/rendezvous/host_finder.h"

namespace hasten::launcher {

struct EtcdFinderOptions {
  std::string url = {};  ///< "http://etcd:2379"
  EtcdAccess access = {};
  std::string user = {};  ///< "name:password"; "": the server requires none
  std::string key = {};
  Bytes run_key = {};
  Socket listener = Socket();  ///< where this launcher is the host, if it is
  Seconds loss_timeout = std::chrono::seconds(5);
  std::function<void(const std::string& line)> notice = [](const std::string&) {};
};

class EtcdFinder final : public HostFinder {
 public:
  /// Throws: UsageError if the system allows no process.
  explicit EtcdFinder(EtcdFinderOptions options);
  ~EtcdFinder() override;

  void begin(Search search, TimePoint now) override;
  void add_sources(std::vector<pollfd>& sources) const override;
  std::optional<Found> pump(const std::vector<int>& ready, TimePoint now) override;
  std::optional<TimePoint> deadline() const override;
  std::optional<Endpoint> replaced_by() override { return std::exchange(replaced_by_, std::nullopt); }

 private:
  void read_news(TimePoint now);
  std::optional<Found> read_candidate();
  void order(const std::string& what);
  void look_again(TimePoint now);

  EtcdFinderOptions options_;
  Endpoint here_;
  Socket socket_;  // to the process that is connected to etcd
  pid_t process_ = 0;
  bool searching_ = false;
  bool hosting_ = false;
  std::string holder_;  // the last news
  std::unique_ptr<Channel> candidate_;
  Endpoint candidate_at_;
  std::optional<Endpoint> replaced_by_;
  std::string last_error_, fatal_;
  TimePoint next_look_ = {}, next_sign_of_life_ = {}, candidate_until_ = {};
};

}  // namespace hasten::launcher
