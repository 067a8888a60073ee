// Messages between ranks: order, large bodies, both transports, strangers, ends.
#include "hasten/comm/messages/messages.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/core/socket.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using hasten::testing::run_ranks;

// Keeps what comes; a thread serves.
class Inbox final : public MessageSink {
 public:
  struct Got {
    int from;
    std::string head, body;
  };
  class Arriving final : public IncomingMessage {
   public:
    Arriving(Inbox& inbox, int from, std::string head, int64_t size)
        : inbox_(inbox), got_{from, std::move(head), std::string(static_cast<size_t>(size), '\0')} {
      if (size > 0) body = {std::as_writable_bytes(std::span(got_.body))};
    }
    void complete() override { inbox_.add(std::move(got_)); }

   private:
    Inbox& inbox_;
    Got got_;
  };
  std::unique_ptr<IncomingMessage> begin(int from, std::string_view head, int64_t size) override {
    return std::make_unique<Arriving>(*this, from, std::string(head), size);
  }
  void gone(int rank, bool left, const std::string&) override {
    const std::lock_guard lock(mutex_);
    gone_.emplace_back(rank, left);
    changed_.notify_all();
  }
  void timer() override {}
  void joined(int rank) override {
    const std::lock_guard lock(mutex_);
    joined_.push_back(rank);
  }
  std::vector<int> joined() {
    const std::lock_guard lock(mutex_);
    return joined_;
  }

  void serve(Messages& messages) {
    stop_ = false;
    thread_ = std::thread([&] {
      while (!stop_) messages.serve(std::chrono::milliseconds(-1));
    });
  }
  void stop(Messages& messages) {
    stop_ = true;
    messages.wake();
    thread_.join();
  }
  std::vector<Got> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return got_.size() >= count; });
    return got_;
  }
  size_t num_got() {
    const std::lock_guard lock(mutex_);
    return got_.size();
  }
  std::vector<std::pair<int, bool>> wait_for_gone(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return gone_.size() >= count; });
    return gone_;
  }

 private:
  void add(Got got) {
    const std::lock_guard lock(mutex_);
    got_.push_back(std::move(got));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Got> got_;
  std::vector<std::pair<int, bool>> gone_;
  std::vector<int> joined_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

OutgoingMessage message_of(const std::string& head, const std::string* body = nullptr,
                           std::function<void()> sent = nullptr) {
  OutgoingMessage message;
  message.head += head;
  if (body != nullptr) message.body = {std::as_bytes(std::span(*body))};
  message.sent = std::move(sent);
  return message;
}

void exchange(const hasten::testing::RankOptions& options, int64_t pull_bytes) {
  run_ranks(
      3,
      [&](process::Process& process) {
        Inbox inbox;
        Messages messages(process.group(), inbox, {.pull_bytes = pull_bytes});
        inbox.serve(messages);
        const std::string large(3'000'000, static_cast<char>('a' + process.rank()));
        std::atomic<int> num_sent = 0;

        for (int i = 0; i < 50; ++i) {
          for (int to = 0; to < 3; ++to) {
            if (to != process.rank())
              messages.send(to, message_of(std::to_string(i), i == 25 ? &large : nullptr, [&] { ++num_sent; }));
          }
        }

        const auto all = inbox.wait_for(100);
        EXPECT_EQ(all.size(), 100u);
        std::array<int, 3> next{};
        for (const auto& got : all) {
          EXPECT_EQ(got.head, std::to_string(next[static_cast<size_t>(got.from)]++))
              << "messages of one rank keep their order";
          if (got.head == "25") {
            EXPECT_EQ(got.body, std::string(large.size(), static_cast<char>('a' + got.from)));
          }
        }
        process.group().barrier();
        for (int i = 0; i < 5000 && num_sent < 100; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(num_sent, 100) << "every message's memory is given back";
        inbox.stop(messages);
        process.group().barrier();
      },
      options);
}

TEST(Messages, AWaiterReadsItsAnswerAlsoWhereBothRanksHaveConnected) {
  run_ranks(2, [&](process::Process& process) {
    const int other = 1 - process.rank();
    Inbox inbox;
    Messages messages(process.group(), inbox);
    messages.send(other, message_of("first"));
    process.group().barrier();  // both have connected before either reads
    inbox.serve(messages);
    EXPECT_EQ(inbox.wait_for(1).size(), 1u);
    inbox.stop(messages);
    process.group().barrier();

    if (process.rank() == 1) messages.send(0, message_of("answer"));
    if (process.rank() == 0) {
      EXPECT_TRUE(messages.read_from(1, [&] { return inbox.num_got() == 2; }));
    }
    process.group().barrier();
  });
}

TEST(Messages, KeepTheirOrderOnOneHost) {
  exchange({}, 64 * 1024);
}

TEST(Messages, KeepTheirOrderThroughTheSocketAlone) {
  exchange({}, INT64_MAX);
}

TEST(Messages, KeepTheirOrderBetweenHosts) {
  exchange({.adjust = [](int rank, GroupOptions& options) { options.host = "host" + std::to_string(rank); }},
           64 * 1024);
}

TEST(Messages, ARankThatLeavesOrIsLostIsReported) {
  run_ranks(3, [](process::Process& process) {
    Inbox inbox;
    auto messages = std::make_unique<Messages>(process.group(), inbox);
    inbox.serve(*messages);
    for (int to = 0; to < 3; ++to) {
      if (to != process.rank()) messages->send(to, message_of("hello"));
    }
    inbox.wait_for(2);
    process.group().barrier();
    if (process.rank() > 0) {
      inbox.stop(*messages);
      messages->close(process.rank() == 1);
    } else {
      auto gone = inbox.wait_for_gone(2);
      std::sort(gone.begin(), gone.end());
      EXPECT_EQ(gone, (std::vector<std::pair<int, bool>>{{1, true}, {2, false}}));
      EXPECT_THROW(messages->send(2, message_of("late")), CommError);
      inbox.stop(*messages);
    }
    process.group().barrier();
  });
}

// The sockets of this process that have connected to a rank.
std::vector<int> connected_sockets() {
  std::vector<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  for (const dirent* entry = readdir(folder); entry != nullptr; entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_un peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sun_family != AF_UNIX) continue;
    if (size > sizeof(sa_family_t) + 8 && std::string(peer.sun_path + 1, 7) == "hasten-") found.push_back(fd);
  }
  closedir(folder);
  return found;
}

// Two ranks that have called each other at once, and so have two connections; then that of rank 0 is cut. `after` runs
// in both.
void cut_one_of_two(const std::function<void(int rank, Messages& messages, Inbox& inbox, const Group& group)>& after) {
  int socket = -1;
  run_ranks(2, [&](process::Process& process) {
    Inbox inbox;
    Messages messages(process.group(), inbox);
    if (process.rank() == 0) {
      messages.send(1, message_of("hello"));
      const auto sockets = connected_sockets();
      EXPECT_EQ(sockets.size(), 1u);
      socket = sockets.at(0);
    }
    process.group().barrier();
    if (process.rank() == 1) messages.send(0, message_of("hello"));
    process.group().barrier();
    if (process.rank() == 0) {
      EXPECT_EQ(connected_sockets().size(), 2u);
    }
    inbox.serve(messages);
    inbox.wait_for(1);
    process.group().barrier();
    inbox.stop(messages);
    process.group().barrier();
    if (process.rank() == 0) shutdown(socket, SHUT_RDWR);
    process.group().barrier();
    after(process.rank(), messages, inbox, process.group());
    process.group().barrier();
  });
}

TEST(Messages, OneCutConnectionOfTwoLosesTheRank) {
  cut_one_of_two([](int rank, Messages& messages, Inbox& inbox, const Group&) {
    inbox.serve(messages);

    EXPECT_EQ(inbox.wait_for_gone(1), (std::vector<std::pair<int, bool>>{{1 - rank, false}}));
    EXPECT_THROW(messages.send(1 - rank, message_of("late")), CommError);
    EXPECT_FALSE(messages.has_connection(1 - rank));
    inbox.stop(messages);
  });
}

TEST(Messages, WhatTheOtherConnectionHoldsIsReadAfterACut) {
  cut_one_of_two([](int rank, Messages& messages, Inbox& inbox, const Group& group) {
    if (rank == 1) {
      messages.send(0, message_of("last words"));
      messages.close(true);
    }
    group.barrier();
    if (rank == 1) return;
    inbox.serve(messages);

    EXPECT_EQ(inbox.wait_for_gone(1), (std::vector<std::pair<int, bool>>{{1, true}})) << "its goodbye counts";
    EXPECT_EQ(inbox.wait_for(2).at(1).head, "last words");
    EXPECT_EQ(messages.why_gone(1), "it has left");
    inbox.stop(messages);
  });
}

// On one host the first send throws. Between hosts connecting takes time: it is reported, and the next send throws.
void find_the_closed(const hasten::testing::RankOptions& options) {
  run_ranks(
      2,
      [](process::Process& process) {
        Inbox inbox;
        auto messages = std::make_unique<Messages>(process.group(), inbox);
        if (process.rank() == 1) messages.reset();
        process.group().barrier();
        if (process.rank() == 0) {
          inbox.serve(*messages);
          try {
            messages->send(1, message_of("late"));
            EXPECT_FALSE(messages->is_on_this_host(1));
          } catch (const CommError& error) {
            EXPECT_THAT(error.what(), ::testing::HasSubstr("cannot be reached"));
          }
          EXPECT_EQ(inbox.wait_for_gone(1), (std::vector<std::pair<int, bool>>{{1, false}}));
          EXPECT_THROW(messages->send(1, message_of("later")), CommError);
          EXPECT_THAT(messages->why_gone(1),
                      ::testing::AnyOf(::testing::HasSubstr("ended or closed"), ::testing::HasSubstr("refused")));
          inbox.stop(*messages);
        }
        process.group().barrier();
      },
      options);
}

TEST(Messages, WhatNeverConnectedIsFoundOnOneHost) {
  find_the_closed({});
}

TEST(Messages, WhatNeverConnectedIsFoundBetweenHosts) {
  find_the_closed({.adjust = [](int rank, GroupOptions& options) { options.host = "host" + std::to_string(rank); }});
}

// Visits the addresses of this process's listening sockets.
void for_each_listener(const std::function<void(const sockaddr_storage&, socklen_t)>& visit) {
  DIR* const folder = opendir("/proc/self/fd");
  for (const dirent* entry = readdir(folder); entry != nullptr; entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_storage own{};
    socklen_t own_size = sizeof own;
    getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size);
    visit(own, own_size);
  }
  closedir(folder);
}

// The addresses at which this process listens by TCP.
std::vector<std::string> tcp_listeners() {
  std::vector<std::string> all;
  for_each_listener([&](const sockaddr_storage& own, socklen_t size) {
    if (own.ss_family == AF_UNIX) return;
    char host[NI_MAXHOST] = "";
    getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
    all.emplace_back(host);
  });
  std::sort(all.begin(), all.end());
  return all;
}

// What two ranks listen at beside what their groups do.
std::vector<std::string> listeners_of_two(const hasten::testing::RankOptions& options) {
  std::vector<std::string> fresh;
  run_ranks(
      2,
      [&](process::Process& process) {
        process.group().barrier();
        const auto before = tcp_listeners();
        process.group().barrier();
        Inbox inbox;
        const Messages messages(process.group(), inbox);
        process.group().barrier();
        if (process.rank() == 0) {
          const auto after = tcp_listeners();
          std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(fresh));
        }
        process.group().barrier();
      },
      options);
  return fresh;
}

TEST(Messages, ListenByTcpAtOneAddressAndOnlyWhereThereAreOtherHosts) {
  EXPECT_EQ(listeners_of_two({}), std::vector<std::string>()) << "on one host the abstract name is enough";

  const auto on_two_hosts = [](int rank, GroupOptions& options) {
    options.host = "host" + std::to_string(rank);
    options.address = "127.0.0." + std::to_string(rank + 1);
  };
  EXPECT_EQ(listeners_of_two({.adjust = on_two_hosts}), (std::vector<std::string>{"127.0.0.1", "127.0.0.2"}));
}

// The name of the Unix socket at which this process's only Messages listens.
std::pair<sockaddr_un, socklen_t> listening_socket() {
  std::pair<sockaddr_un, socklen_t> found{};
  for_each_listener([&](const sockaddr_storage& any, socklen_t size) {
    sockaddr_un own{};
    std::memcpy(&own, &any, sizeof own);
    if (own.sun_family == AF_UNIX && std::string(own.sun_path + 1, 7) == "hasten-") found = {own, size};
  });
  return found;
}

TEST(Messages, AStrangersConnectionIsClosedAndHarmsNobody) {
  const auto store = Store::in_process();
  const GroupOptions here{.address = "127.0.0.1"};
  Inbox first, second;
  auto a = Messages::join(store, here, first);
  first.serve(*a);
  const auto [address, size] = listening_socket();
  ASSERT_GT(size, 0u);
  const net::Socket stranger(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(stranger.handle(), reinterpret_cast<const sockaddr*>(&address), size), 0);

  const std::string garbage(4096, 'x');
  EXPECT_EQ(send(stranger.handle(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(garbage.size()));
  char byte = 0;
  EXPECT_LE(recv(stranger.handle(), &byte, 1, 0), 0) << "nothing is answered";

  auto b = Messages::join(store, here, second);
  second.serve(*b);
  b->send(0, message_of("hello"));
  EXPECT_EQ(first.wait_for(1).at(0).head, "hello");
  second.stop(*b);
  b->close(true);
  first.stop(*a);
}

TEST(Messages, ARankOfAnotherHostThatFallsSilentIsLost) {
  run_ranks(2,
            [](process::Process& process) {
              Inbox inbox;
              Messages messages(process.group(), inbox, {.lost_after_s = 2});
              inbox.serve(messages);
              messages.send(1 - process.rank(), message_of("hello"));
              inbox.wait_for(1);
              process.group().barrier();
              if (process.rank() == 1) {
                inbox.stop(messages);  // nothing is read or sent, and the connection stays
              } else {
                EXPECT_EQ(inbox.wait_for_gone(1), (std::vector<std::pair<int, bool>>{{1, false}}));
                EXPECT_THAT(messages.why_gone(1), ::testing::HasSubstr("nothing was heard from it for 2 s"));
                inbox.stop(messages);
              }
              process.group().barrier();
            },
            {.adjust = [](int rank, GroupOptions& options) { options.host = "host" + std::to_string(rank); }});
}

TEST(Messages, RanksJoinOneByOneAndNumbersAreNotUsedAgain) {
  const auto store = Store::in_process();
  const auto stop = [](Inbox& inbox, std::unique_ptr<Messages>& messages, bool goodbye) {
    inbox.stop(*messages);
    messages->close(goodbye);
  };
  Inbox first, second, third;
  const GroupOptions here{.address = "127.0.0.1"};
  auto a = Messages::join(store, here, first, {.about = "a"});
  first.serve(*a);
  auto b = Messages::join(store, here, second, {.about = "b"});
  second.serve(*b);

  b->send(0, message_of("hello"));
  EXPECT_EQ(first.wait_for(1).at(0).from, 1);
  EXPECT_EQ(first.joined(), std::vector<int>{1}) << "before its first message";
  EXPECT_EQ(a->about(1), "b");
  EXPECT_EQ(b->about(0), "a");
  a->send(1, message_of("welcome"));
  EXPECT_EQ(second.wait_for(1).at(0).head, "welcome");
  stop(second, b, true);
  EXPECT_EQ(first.wait_for_gone(1), (std::vector<std::pair<int, bool>>{{1, true}}));
  auto c = Messages::join(store, here, third, {.about = "c"});
  third.serve(*c);

  EXPECT_EQ(c->rank(), 2);
  EXPECT_EQ(c->why_gone(1), "it has left");
  EXPECT_THROW(c->send(1, message_of("late")), CommError);
  c->send(0, message_of("me too"));
  EXPECT_EQ(first.wait_for(2).at(1).from, 2);
  stop(third, c, false);
  EXPECT_EQ(first.wait_for_gone(2).at(1), (std::pair<int, bool>{2, false}));
  stop(first, a, true);
}

TEST(Messages, WhoLacksTheRunsKeyCannotJoin) {
  const auto store = Store::in_process();
  const GroupOptions here{.address = "127.0.0.1"};
  Inbox inbox;
  auto a = Messages::join(store, here, inbox, {.run_key = std::string(32, 'k')});

  EXPECT_TRUE(a->has_run_key());
  EXPECT_THROW(Messages::join(store, here, inbox), UsageError);
}

}  // namespace
}  // namespace hasten::comm
