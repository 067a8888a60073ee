// The rendezvous of static runs; see static_rendezvous.h. Each side sends a line of JSON. Machine 0 sends first, so
// that a launcher sends nothing if it reaches the workers' store of an attempt that still runs.
#include "launch/rendezvous/static_rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "launch/base/endpoint.h"

namespace hasten::launcher {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kGreeting = "hasten meeting 1";
constexpr size_t kLongestLine = 4096;
constexpr auto kGlance = std::chrono::milliseconds(100);  // between two checks of options.interrupted
constexpr auto kAnswerDelay = std::chrono::seconds(5);
constexpr auto kPatience = std::chrono::seconds(1);  // with a process that may be no launcher

std::string to_line(const MachineFacts& facts) {
  const json line = {{"machine_rank", facts.machine_rank},
                     {"num_machines", facts.num_machines},
                     {"num_processes", facts.num_processes},
                     {"num_local_processes", facts.num_local_processes},
                     {"processes_of_machines", facts.processes_of_machines},
                     {"run_id", facts.run_id},
                     {"attempt", facts.attempt},
                     {"host", facts.host}};
  return line.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
}

std::optional<MachineFacts> facts_in(const std::string& line) {
  try {
    const json facts = json::parse(line);
    return MachineFacts{.machine_rank = facts.at("machine_rank"),
                        .num_machines = facts.at("num_machines"),
                        .num_processes = facts.at("num_processes"),
                        .num_local_processes = facts.at("num_local_processes"),
                        .processes_of_machines = facts.at("processes_of_machines"),
                        .run_id = facts.at("run_id"),
                        .attempt = facts.at("attempt"),
                        .host = facts.at("host")};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::string machine_name(const MachineFacts& machine) {
  return text("machine ", machine.machine_rank, machine.host.empty() ? "" : text(" (", machine.host, ")"));
}

std::string processes_of(const MachineFacts& machine) {
  return machine.processes_of_machines.empty() ? std::to_string(machine.num_local_processes)
                                               : join(machine.processes_of_machines, ",");
}

std::string seconds_of(std::chrono::duration<double> time) {
  return text(time.count(), " s");
}

bool wait_readable(int handle, Clock::time_point until) {
  pollfd source = {handle, POLLIN, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return poll(&source, 1, static_cast<int>(std::max<int64_t>(left, 0))) > 0;
}

// A launcher's side of a connection: whole lines of the arrived bytes.
class MeetingConnection {
 public:
  MeetingConnection(Socket socket, std::string address) : socket_(std::move(socket)), address_(std::move(address)) {}

  int handle() const { return socket_.handle(); }
  const std::string& address() const { return address_; }
  bool ended() const { return ended_; }
  void send_line(const std::string& line) const {
    send(socket_.handle(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Reads what is there; the next whole line, if one has come.
  std::optional<std::string> read_line() {
    char buffer[1024];
    ssize_t size = 0;
    while ((size = recv(socket_.handle(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
      read_.append(buffer, static_cast<size_t>(size));
    const bool failed = size < 0 && errno != EAGAIN && errno != EINTR;
    const size_t end = read_.find('\n');
    ended_ = end == std::string::npos && (size == 0 || failed || read_.size() > kLongestLine);
    if (end == std::string::npos) return std::nullopt;
    std::string line = read_.substr(0, end);
    read_.erase(0, end + 1);
    return line;
  }

  std::optional<MachineFacts> facts;

 private:
  Socket socket_;
  std::string address_;
  std::string read_;
  bool ended_ = false;
};

Socket listen_for(const MeetingOptions& options) {
  auto [listener, why] = listen_at({options.address, options.port});
  if (listener.handle() < 0) {
    throw UsageError({"launch"}, "machine 0 cannot listen on ", options.address, ':', options.port, ": ", why,
                     ". The address must be one of this machine's (--master_addr, the same on all), and the "
                     "port free there (--master_port); other machines need their own --node_rank.");
  }
  return std::move(listener);
}

// Machine 0.
class MeetingHost {
 public:
  MeetingHost(const MachineFacts& mine, const MeetingOptions& options)
      : mine_(mine), options_(options), listener_(listen_for(options)) {}

  bool run() {
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.timeout);
    while (!missing().empty()) {
      if (options_.interrupted()) return false;
      if (Clock::now() >= deadline) give_up();
      look(std::min(deadline, Clock::now() + kGlance));
    }
    listener_ = Socket();  // before any worker connects to the store there
    for (const MeetingConnection& guest : guests_) guest.send_line("{\"go\": true}\n");
    return true;
  }

 private:
  void look(Clock::time_point until) {
    std::vector<pollfd> sources = {{listener_.handle(), POLLIN, 0}};
    for (const MeetingConnection& guest : guests_) sources.push_back({guest.handle(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (poll(sources.data(), sources.size(), static_cast<int>(std::max<int64_t>(left, 0))) <= 0) return;
    for (size_t i = 0; i < guests_.size(); ++i) {
      if (sources[i + 1].revents != 0) hear(guests_[i]);
    }
    std::erase_if(guests_, [](const MeetingConnection& guest) { return guest.ended(); });
    if (sources[0].revents == 0) return;
    auto [socket, address] = accept_from(listener_);
    if (socket.handle() < 0) return;
    guests_.emplace_back(std::move(socket), std::move(address));
    guests_.back().send_line(text(kGreeting, "\n"));
  }

  void hear(MeetingConnection& guest) {
    const auto line = guest.read_line();
    if (!line || guest.facts) return;
    guest.facts = facts_in(*line);
    if (!guest.facts) {
      options_.notice(text("turned someone away at ", guest.address(), " who is no launcher of this run"));
      return guest.send_line("\n");
    }
    const std::string problem = disagreement(machines());
    if (problem.empty()) return;
    tell_all("disagreement", problem);
    throw UsageError({"launch"}, problem);
  }

  std::vector<MachineFacts> machines() const {
    std::vector<MachineFacts> all = {mine_};
    for (const MeetingConnection& guest : guests_) {
      if (guest.facts) all.push_back(*guest.facts);
    }
    return all;
  }

  std::set<int> missing() const {
    std::set<int> ranks;
    for (int rank = 1; rank < mine_.num_machines; ++rank) ranks.insert(rank);
    for (const MachineFacts& machine : machines()) ranks.erase(machine.machine_rank);
    return ranks;
  }

  [[noreturn]] void give_up() const {
    const auto ranks = missing();
    const std::string message =
        text(ranks.size(), " of ", count_text(mine_.num_machines, "machine"), " did not come to ", options_.address,
             ':', options_.port, " within ", seconds_of(options_.timeout), ": ",
             ranks.size() == 1 ? "machine " : "machines ", join(ranks),
             ". Start hasten launch there with its --node_rank, or wait longer "
             "(--rdzv_conf join_timeout=SECONDS).");
    tell_all("missing", message);
    throw CommError({"launch"}, "meet", message);
  }

  void tell_all(const char* what, const std::string& words) const {
    const std::string line = json{{what, words}}.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
    for (const MeetingConnection& guest : guests_) guest.send_line(line);
  }

  const MachineFacts& mine_;
  const MeetingOptions& options_;
  Socket listener_;
  std::vector<MeetingConnection> guests_;
};

// Every other machine.
class MeetingGuest {
 public:
  MeetingGuest(const MachineFacts& mine, const MeetingOptions& options)
      : mine_(mine),
        options_(options),
        deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(options.timeout)) {}

  bool run() {
    while (true) {
      if (auto connection = connect()) {
        if (const auto answer = ask(*connection)) return obey(*answer);
      }
      if (options_.interrupted()) return false;
      if (Clock::now() >= deadline_) give_up();
      poll(nullptr, 0, static_cast<int>(kGlance.count()));
    }
  }

 private:
  std::optional<MeetingConnection> connect() {
    auto [socket, problem] = connect_within({options_.address, options_.port}, kPatience);
    if (socket.handle() < 0) {
      problem_ = problem;
      return std::nullopt;
    }
    return MeetingConnection(std::move(socket), "");
  }

  // Nothing if that was not machine 0, or if it has gone.
  std::optional<std::string> ask(MeetingConnection& host) {
    const auto greeting = next_line(host, std::min(deadline_, Clock::now() + kPatience));
    if (greeting != kGreeting) {
      problem_ = "something else is there";
      return std::nullopt;
    }
    host.send_line(to_line(mine_));
    problem_ = "machine 0 has gone silent";
    // From here on it is machine 0's time that counts, which has begun by now.
    const auto timeout = std::chrono::duration_cast<Clock::duration>(options_.timeout);
    return next_line(host, Clock::now() + timeout + kAnswerDelay);
  }

  std::optional<std::string> next_line(MeetingConnection& host, Clock::time_point until) const {
    while (Clock::now() < until && !options_.interrupted()) {
      wait_readable(host.handle(), std::min(until, Clock::now() + kGlance));
      auto line = host.read_line();
      if (line || host.ended()) return line;
    }
    return std::nullopt;
  }

  static bool obey(const std::string& answer) {
    const json reply = json::parse(answer, nullptr, false);
    if (reply.is_object() && reply.contains("go")) return true;
    if (reply.is_object() && reply.contains("disagreement"))
      throw UsageError({"launch"}, reply["disagreement"].get<std::string>());
    if (reply.is_object() && reply.contains("missing"))
      throw CommError({"launch"}, "meet", reply["missing"].get<std::string>());
    throw CommError({"launch"}, "meet", "machine 0 is of another version of hasten, and said '", answer,
                    "'. Use the same on all machines.");
  }

  [[noreturn]] void give_up() const {
    throw CommError({"launch"}, "meet", "machine ", mine_.machine_rank, " of ", mine_.num_machines,
                    " found no meeting at ", options_.address, ':', options_.port, " within ",
                    seconds_of(options_.timeout), " (", problem_,
                    "). Start machine 0 there, with the same address and port on all machines "
                    "(--master_addr, --master_port), and see that no firewall is between.");
  }

  const MachineFacts& mine_;
  const MeetingOptions& options_;
  const Clock::time_point deadline_;
  std::string problem_ = "nobody answered";
};

}  // namespace

std::string disagreement(const std::vector<MachineFacts>& machines) {
  const MachineFacts& first = machines.front();
  struct Number {
    const char* name;
    int MachineFacts::*value;
  };
  for (size_t i = 0; i < machines.size(); ++i) {
    const MachineFacts& other = machines[i];
    for (const auto& [name, value] :
         {Number{"machines", &MachineFacts::num_machines}, Number{"processes", &MachineFacts::num_processes},
          Number{"processes on each machine", &MachineFacts::num_local_processes}}) {
      const bool may_differ = value == &MachineFacts::num_local_processes && !first.processes_of_machines.empty();
      if (first.*value == other.*value || may_differ) continue;
      return text("machines disagree on the number of ", name, ": ", machine_name(first), " has ", first.*value, ", ",
                  machine_name(other), " has ", other.*value,
                  ". Give all the same --nnodes, --num_processes and --nproc_per_node.");
    }
    if (first.processes_of_machines != other.processes_of_machines) {
      return text("machines disagree on who has how many processes: ", machine_name(first), " has --nproc_per_node ",
                  processes_of(first), ", ", machine_name(other), " has ", processes_of(other), ". Give all the same.");
    }
    if (first.run_id != other.run_id) {
      return text("machines disagree on the run: ", machine_name(first), " has --rdzv_id ", first.run_id, ", ",
                  machine_name(other), " has ", other.run_id, ". Give all the same, or another --master_port.");
    }
    if (first.attempt != other.attempt) {
      return text("machines disagree on the attempt: ", machine_name(first), " begins number ", first.attempt, ", ",
                  machine_name(other), " number ", other.attempt, ". Give all the same --max_restarts.");
    }
    if (other.machine_rank < 0 || other.machine_rank >= first.num_machines) {
      return text(machine_name(other), " is none of the ", count_text(first.num_machines, "machine"),
                  ", which are counted from 0. Correct its --node_rank.");
    }
    for (size_t j = 0; j < i; ++j) {
      if (machines[j].machine_rank != other.machine_rank) continue;
      return text("two launchers say that they are machine ", other.machine_rank, ": on ", machines[j].host, " and on ",
                  other.host, ". Give each its own --node_rank.");
    }
  }
  return "";
}

bool join_static(const MachineFacts& mine, const MeetingOptions& options) {
  if (mine.num_machines <= 1) return true;
  return mine.machine_rank == 0 ? MeetingHost(mine, options).run() : MeetingGuest(mine, options).run();
}

}  // namespace hasten::launcher
