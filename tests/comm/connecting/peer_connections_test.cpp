#include "comm/connecting/peer_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/types.h>

#include <latch>
#include <sstream>
#include <thread>

#include "comm/types/collective_fingerprint.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

BackendSetup setup_of(const Store& store, int rank, int world_size, milliseconds timeout) {
  GroupOptions options;
  options.timeout = timeout;
  options.address = "127.0.0.1";
  return {store, rank, world_size, options};
}

// Each rank is a thread with its end of one mesh.
void on_mesh(int world_size, const std::function<void(PeerConnections&)>& fn,
             milliseconds timeout = std::chrono::seconds(20)) {
  const Store store = Store::in_process();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        PeerConnections mesh(setup_of(store, rank, world_size, timeout));
        fn(mesh);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
}

Header call_of(int64_t numel) {
  return {.kind = static_cast<uint32_t>(OpType::kAllGather), .dtype = static_cast<int32_t>(at::kInt), .count = numel};
}

struct Sent {
  std::shared_ptr<PeerConnections::Round> round;
  std::vector<at::Tensor> parts;
  int number;
};

at::Tensor content(int rank, int number, int64_t numel) {
  return torch::arange(numel, at::kInt) + 1000 * number + rank;
}

Sent start(PeerConnections& mesh, int number, int64_t numel, std::function<void()> finish = nullptr) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    parts.push_back(rank == mesh.rank() ? content(rank, number, numel) : torch::zeros({numel}, at::kInt));
  }
  auto round = std::make_shared<PeerConnections::Round>(call_of(numel), parts, std::move(finish));
  mesh.start(round);
  return {round, parts, number};
}

bool has_everything(const Sent& sent) {
  for (size_t rank = 0; rank < sent.parts.size(); ++rank) {
    const at::Tensor& part = sent.parts[rank];
    if (!torch::equal(part, content(static_cast<int>(rank), sent.number, part.numel()))) return false;
  }
  return true;
}

TEST(PeerConnections, StartsManyRoundsBeforeAnybodyReadsAndMixesNothingUp) {
  // 50 MB to each peer: much more than connections hold.
  std::latch all_started(3);
  on_mesh(3, [&](PeerConnections& mesh) {
    std::vector<Sent> rounds;
    for (int number = 0; number < 400; ++number) {
      rounds.push_back(start(mesh, number, number % 5 == 0 ? number : 40'000));
    }
    all_started.arrive_and_wait();
    for (const Sent& sent : rounds) {
      mesh.wait(*sent.round);
      ASSERT_TRUE(has_everything(sent)) << sent.number;
    }
  });
}

TEST(PeerConnections, WhatNobodyWaitsForIsFinishedByLaterWaitingAndAtTheEnd) {
  for (const bool waits_later : {true, false}) {
    std::atomic<int> finished = 0;
    on_mesh(2, [&](PeerConnections& mesh) {
      start(mesh, 1, 10, [&] { ++finished; });
      start(mesh, 2, 0, [&] { ++finished; });
      if (waits_later) {
        mesh.wait(*start(mesh, 3, 10).round);
        EXPECT_GE(finished.load(), 2);
      }
    });
    EXPECT_EQ(finished.load(), 4);
  }
}

TEST(PeerConnections, SeveralThreadsWaitForDifferentRounds) {
  on_mesh(2, [](PeerConnections& mesh) {
    for (int turn = 0; turn < 50; ++turn) {
      std::vector<Sent> rounds;
      std::vector<std::thread> waiters;
      if (mesh.rank() == turn % 2) std::this_thread::sleep_for(milliseconds(2));
      for (int number = 0; number < 4; ++number) rounds.push_back(start(mesh, number, 100 * number));
      for (const Sent& sent : rounds) {
        waiters.emplace_back([&mesh, sent] {
          mesh.wait(*sent.round);
          EXPECT_TRUE(has_everything(sent));
        });
      }
      for (auto& waiter : waiters) waiter.join();
    }
  });
}

TEST(PeerConnections, DoneAnswersWithoutWaiting) {
  std::latch has_asked(1);
  on_mesh(2, [&](PeerConnections& mesh) {
    if (mesh.rank() == 1) has_asked.wait();
    const Sent sent = start(mesh, 1, 10);
    if (mesh.rank() == 0) {
      EXPECT_FALSE(mesh.done(*sent.round));
      has_asked.count_down();
    }
    while (!mesh.done(*sent.round)) std::this_thread::yield();
    EXPECT_TRUE(has_everything(sent));
  });
}

TEST(PeerConnections, DifferentRoundsAreNamedOnEveryRankAndTheNextOnesAreFound) {
  on_mesh(3, [](PeerConnections& mesh) {
    const Sent different = start(mesh, 1, mesh.rank() == 2 ? 3000 : 10);
    const Sent next = start(mesh, 2, 10);
    EXPECT_THAT([&] { mesh.wait(*different.round); },
                ThrowsMessage<Backend::Mismatch>(AllOf(HasSubstr("rank 0 calls all_gather of 10 Int"),
                                                       HasSubstr("rank 2 calls all_gather of 3000 Int"))));
    mesh.wait(*next.round);
    EXPECT_TRUE(has_everything(next));
  });
}

TEST(PeerConnections, WhatFinishThrowsIsThrownByWait) {
  on_mesh(2, [](PeerConnections& mesh) {
    const Sent sent = start(mesh, 1, 10, [] { throw std::runtime_error("no"); });
    EXPECT_THAT([&] { mesh.wait(*sent.round); }, ThrowsMessage<std::runtime_error>(HasSubstr("no")));
  });
}

TEST(PeerConnections, ARankThatLeavesIsNamedAfterWhatItHasSent) {
  on_mesh(3, [](PeerConnections& mesh) {
    const Sent first = start(mesh, 1, 10);
    if (mesh.rank() == 2) return;
    const Sent second = start(mesh, 2, 10);
    mesh.wait(*first.round);
    EXPECT_TRUE(has_everything(first));
    EXPECT_THAT([&] { mesh.wait(*second.round); },
                ThrowsMessage<std::runtime_error>(HasSubstr("rank 2 has closed its connection")));
  });
}

TEST(PeerConnections, ATimeoutNamesWhoHasNotCome) {
  std::latch over(2);
  on_mesh(
      3,
      [&](PeerConnections& mesh) {
        if (mesh.rank() == 2) over.wait();
        const Sent sent = start(mesh, 1, 10);
        if (mesh.rank() == 2) return;
        EXPECT_THAT([&] { mesh.wait(*sent.round); },
                    ThrowsMessage<Backend::TimedOut>(HasSubstr("not there yet: rank 2")));
        over.count_down();
      },
      milliseconds(300));
}

TEST(PeerConnections, ClosingEndsTheWaitingOfOthers) {
  std::latch waits(1);
  on_mesh(2, [&](PeerConnections& mesh) {
    if (mesh.rank() == 1) {
      waits.wait();
      mesh.close();
      return;
    }
    const Sent sent = start(mesh, 1, 10);
    std::thread waiter([&] {
      waits.count_down();
      EXPECT_THAT([&] { mesh.wait(*sent.round); },
                  ThrowsMessage<std::runtime_error>(HasSubstr("rank 1 has closed its connection")));
    });
    waiter.join();
  });
}

TEST(PeerConnections, CallersThatDoNotKnowTheSecretAreTurnedAway) {
  const Store store = Store::in_process();
  std::thread first([&] {
    PeerConnections mesh(setup_of(store, 0, 2, std::chrono::seconds(20)));
    const Sent sent = start(mesh, 1, 10);
    mesh.wait(*sent.round);
    EXPECT_TRUE(has_everything(sent));
  });
  std::optional<std::string> line;
  while (!(line = store.get("address/0"))) std::this_thread::yield();
  std::istringstream words(line->substr(1));
  net::Endpoint where;
  words >> where.host >> where.port;
  const auto silent = net::connect_within(where, milliseconds(1000)).first;
  const auto wrong = net::connect_within(where, milliseconds(1000)).first;
  struct {
    char secret[32] = "0123456789012345678901234567890";
    int32_t rank = 1;
  } hello;
  ASSERT_EQ(send(wrong.handle(), &hello, sizeof hello, 0), static_cast<ssize_t>(sizeof hello));

  PeerConnections mesh(setup_of(store, 1, 2, std::chrono::seconds(20)));
  const Sent sent = start(mesh, 1, 10);
  mesh.wait(*sent.round);
  EXPECT_TRUE(has_everything(sent));
  first.join();
}

}  // namespace
}  // namespace hasten::comm
