// The launcher's side of the etcd backends, and the process that is connected to etcd; see etcd_finder.h.
#include "launch/rendezvous/etcd_finder.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>

#include "hasten/core/error.h"
#include "launch/rendezvous/etcd.h"

namespace hasten::launcher {
namespace {

constexpr Seconds kLookPause = std::chrono::milliseconds(300);
constexpr Seconds kCandidatePatience = std::chrono::seconds(2);
constexpr size_t kMaxPacketBytes = 1024;

// Packets to the process: "look", "claim", "alive", "release". From it: "host h:1", "nobody", "error words",
// "fatal words".
void send_packet(int socket, const std::string& words) {
  send(socket, words.data(), std::min(words.size(), kMaxPacketBytes), MSG_NOSIGNAL | MSG_DONTWAIT);
}
// Nothing if there is none; "" at the end.
std::optional<std::string> receive_packet(int socket, int flags) {
  std::string words(kMaxPacketBytes, '\0');
  const ssize_t size = recv(socket, words.data(), words.size(), flags);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  words.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return words;
}

// The process: obeys, and keeps its claim alive as long as the launcher gives signs of life.
class EtcdProcess {
 public:
  EtcdProcess(int socket, EtcdClaim claim, std::string value, Seconds loss_timeout)
      : socket_(socket), claim_(std::move(claim)), value_(std::move(value)), loss_timeout_(loss_timeout) {}

  void run() {
    while (true) {
      pollfd source = {socket_, POLLIN, 0};
      const auto interval = std::chrono::ceil<std::chrono::milliseconds>(loss_timeout_ / 3);
      const int ready = poll(&source, 1, claiming_ ? static_cast<int>(interval.count()) : -1);
      if (ready > 0) {
        const auto words = receive_packet(socket_, 0);
        if (words && words->empty()) break;
        if (words) obey(*words);
      }
      const auto now = std::chrono::steady_clock::now();
      if (claiming_ && now < later(heard_, loss_timeout_) && now >= later(refreshed_, interval)) refresh();
    }
    claim_.release();
  }

 private:
  void obey(const std::string& words) {
    heard_ = std::chrono::steady_clock::now();
    if (words == "look") tell(claim_.look());
    if (words == "claim") {
      claiming_ = true;
      refresh();
    }
    if (words == "release") {
      claiming_ = false;
      claim_.release();
    }
  }
  void refresh() {
    refreshed_ = std::chrono::steady_clock::now();
    tell(claim_.refresh(value_));
  }
  void tell(const std::optional<std::string>& holder) const {
    if (!holder) return send_packet(socket_, "error " + claim_.error());
    send_packet(socket_, holder->empty() ? "nobody" : "host " + *holder);
  }

  const int socket_;
  EtcdClaim claim_;
  const std::string value_;
  const Seconds loss_timeout_;
  bool claiming_ = false;
  TimePoint heard_ = {}, refreshed_ = {};
};

// In the forked process: nothing of the launcher's stays open, and Ctrl-C in the terminal is the launcher's.
[[noreturn]] void become_etcd_process(int socket, const EtcdFinderOptions& options, const std::string& value) {
  setsid();
  prctl(PR_SET_NAME, "hasten-etcd");
  if (socket > 0) close_range(0, static_cast<unsigned>(socket) - 1, 0);
  close_range(static_cast<unsigned>(socket) + 1, ~0U, 0);
  const int ttl_s = std::max(1, static_cast<int>(std::ceil(options.loss_timeout.count())));
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(options.loss_timeout / 2);
  try {
    EtcdClaim claim(make_http_post(timeout, options.access),
                    {.url = options.url, .key = options.key, .user = options.user, .ttl_s = ttl_s});
    EtcdProcess(socket, std::move(claim), value, options.loss_timeout).run();
  } catch (const std::exception& error) {
    send_packet(socket, std::string("fatal ") + error.what());
  }
  _exit(0);
}

}  // namespace

EtcdFinder::EtcdFinder(EtcdFinderOptions options) : options_(std::move(options)), here_(local_end(options_.listener)) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw UsageError({"launch"}, "cannot make a socket: ", std::strerror(errno), ". Raise ulimit -n.");
  socket_ = Socket(ends[0]);
  process_ = fork();
  if (process_ == 0) become_etcd_process(ends[1], options_, shown(here_));
  close(ends[1]);
  if (process_ < 0)
    throw UsageError({"launch"}, "cannot start a process: ", std::strerror(errno), ". Raise ulimit -u.");
}

EtcdFinder::~EtcdFinder() {
  socket_ = Socket();
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void EtcdFinder::order(const std::string& what) {
  send_packet(socket_.handle(), what);
}

void EtcdFinder::begin(Search, TimePoint now) {
  searching_ = true;
  hosting_ = false;
  candidate_.reset();
  next_look_ = next_sign_of_life_ = now;
}

void EtcdFinder::add_sources(std::vector<pollfd>& sources) const {
  sources.push_back({socket_.handle(), POLLIN, 0});
  if (candidate_) candidate_->add_source(sources);
}

std::optional<TimePoint> EtcdFinder::deadline() const {
  if (searching_) return candidate_ ? candidate_until_ : next_look_;
  return hosting_ ? std::optional(next_sign_of_life_) : std::nullopt;
}

std::optional<Found> EtcdFinder::pump(const std::vector<int>& ready, TimePoint now) {
  if (std::binary_search(ready.begin(), ready.end(), socket_.handle())) read_news(now);
  if (hosting_ && now >= next_sign_of_life_) {
    next_sign_of_life_ = later(now, options_.loss_timeout / 4);
    order("alive");
  }
  if (!searching_) return std::nullopt;
  std::optional<Found> found;
  if (!fatal_.empty()) {
    found = Found{.hopeless = fatal_};
  } else if (holder_ == shown(here_)) {
    found = Found{.here = true, .host = here_};
    found->listener = std::exchange(options_.listener, Socket());
    hosting_ = true;
  } else if (candidate_ && std::binary_search(ready.begin(), ready.end(), candidate_->handle())) {
    found = read_candidate();
    if (found) order("release");
  }
  if (candidate_ && (candidate_->closed() || now >= candidate_until_)) look_again(now);
  if (found) {
    searching_ = false;
    candidate_.reset();
  } else if (!candidate_ && now >= next_look_) {
    next_look_ = later(now, kLookPause);
    order("claim");  // any other holder of the key is reported instead
  }
  return found;
}

void EtcdFinder::look_again(TimePoint now) {
  candidate_.reset();
  holder_.clear();
  next_look_ = later(now, kLookPause);
}

void EtcdFinder::read_news(TimePoint now) {
  while (const auto news = receive_packet(socket_.handle(), MSG_DONTWAIT)) {
    if (news->empty()) return;
    if (news->starts_with("fatal ")) fatal_ = news->substr(6);
    if (news->starts_with("error ")) {
      if (*news != last_error_) options_.notice(text("etcd at ", options_.url, ": ", news->substr(6)));
      last_error_ = *news;
      continue;
    }
    last_error_.clear();
    holder_ = news->starts_with("host ") ? news->substr(5) : "";
    const bool another = !holder_.empty() && holder_ != shown(here_);
    if (hosting_ && another) replaced_by_ = parse_endpoint(holder_, 0);
    if (!searching_ || !another || candidate_) continue;
    candidate_at_ = parse_endpoint(holder_, 0);
    candidate_ = std::make_unique<Channel>(connect_to(candidate_at_), Channel::Side::kClient, options_.run_key);
    candidate_->send(to_wire(Ask{}));
    candidate_until_ = later(now, kCandidatePatience);
  }
}

std::optional<Found> EtcdFinder::read_candidate() {
  for (const std::string& text : candidate_->pump()) {
    const auto message = from_wire(text);
    const auto* answer = message ? std::get_if<Answer>(&*message) : nullptr;
    if (answer == nullptr) continue;
    if (answer->kind == Answer::Kind::kHost)
      return Found{.channel = std::move(candidate_), .host = candidate_at_, .generation = answer->generation};
    candidate_->close("it is no host");
  }
  if (!candidate_->refused()) return std::nullopt;
  return Found{.hopeless = text("the host at ", shown(candidate_at_), ": ", candidate_->why_closed())};
}

}  // namespace hasten::launcher
