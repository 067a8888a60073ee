// The reference protocol under every order in which messages can arrive, and under random orders with losses.
#include "rpc/reference_holders.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace hasten::rpc {
namespace {

// Workers 0 (the owner) to n - 1, one value, and a stream between every two workers. A copy of the reference is a grant
// that its worker holds; copies at the owner are counted.
struct World {
  struct Message {
    enum Kind { kCreate, kGrant, kConfirm, kDrop, kCopy } kind;
    Grant grant = {};
    int holder = -1;
    auto operator<=>(const Message&) const = default;
  };
  explicit World(int size) : held(static_cast<size_t>(size)), lost(static_cast<size_t>(size)) {}

  ReferenceHolders owner;
  bool created = false;
  int at_owner = 0;
  std::vector<std::set<Grant>> held;
  std::vector<bool> lost;
  std::map<std::pair<int, int>, std::deque<Message>> streams;
  uint64_t next = 2;
  int forget = 0;

  bool alive() const { return !created || at_owner > 0 || !owner.empty(); }
  // Somebody that is not lost holds the value, or a message on its way carries it.
  bool is_held() const {
    if (at_owner > 0) return true;
    for (size_t w = 1; w < held.size(); ++w) {
      if (!lost[w] && !held[w].empty()) return true;
    }
    for (const auto& [ends, messages] : streams) {
      if (lost[static_cast<size_t>(ends.second)]) continue;
      for (const Message& m : messages) {
        if (m.kind == Message::kCopy) return true;
      }
    }
    return false;
  }
  // `from` passes the reference to `to`, as AgentCore::pass_on does.
  void pass(int from, int to) {
    if (to == 0) {
      streams[{from, 0}].push_back({Message::kCopy, {}, 0});
      return;
    }
    const Grant grant{static_cast<uint32_t>(from), next++};
    if (from == 0) {
      owner.grant(grant, to);
    } else {
      streams[{from, 0}].push_back({Message::kGrant, grant, to});
    }
    streams[{from, to}].push_back({Message::kCopy, grant, to});
  }
  void drop_one(int worker) {
    if (worker == 0) {
      --at_owner;
      return;
    }
    auto& mine = held[static_cast<size_t>(worker)];
    const Grant grant = *mine.begin();
    mine.erase(mine.begin());
    streams[{worker, 0}].push_back({Message::kDrop, grant, worker});
  }
  void deliver(int from, int to) {
    auto& stream = streams[{from, to}];
    const Message m = stream.front();
    stream.pop_front();
    if (stream.empty()) streams.erase({from, to});
    if (lost[static_cast<size_t>(to)]) return;
    switch (m.kind) {
      case Message::kCreate:
        created = true;
        owner.grant({static_cast<uint32_t>(from), 1}, from);
        break;
      case Message::kGrant:
        owner.grant(m.grant, m.holder);
        break;
      case Message::kConfirm:
        owner.confirm(m.grant, from);
        break;
      case Message::kDrop:
        owner.drop(m.grant);
        break;
      case Message::kCopy:
        if (to == 0) {
          ++at_owner;
        } else {
          held[static_cast<size_t>(to)].insert(m.grant);
        }
        break;
    }
  }
  // A worker ends: what it has sent is read or lost (`read`), then the others learn of it.
  void lose(int worker, bool read) {
    lost[static_cast<size_t>(worker)] = true;
    std::vector<std::pair<int, int>> ends;
    for (const auto& [pair, messages] : streams) {
      if (pair.first == worker || pair.second == worker) ends.push_back(pair);
    }
    for (const auto& pair : ends) {
      while (read && pair.first == worker && streams.contains(pair)) deliver(pair.first, pair.second);
      streams.erase(pair);
    }
    for (size_t w = 1; w < held.size(); ++w) {
      if (lost[w]) continue;
      for (const Grant& grant : held[w]) {
        if (grant.giver == static_cast<uint32_t>(worker))
          streams[{static_cast<int>(w), 0}].push_back({Message::kConfirm, grant, static_cast<int>(w)});
      }
    }
    forget = worker;
  }
  // The grace is over: all that was sent before has come.
  void end_grace() {
    while (!streams.empty()) {
      const auto ends = streams.begin()->first;
      deliver(ends.first, ends.second);
    }
    owner.lose(forget);
  }
  void drain() {
    for (bool again = true; again;) {
      again = !streams.empty();
      while (!streams.empty()) {
        const auto ends = streams.begin()->first;
        deliver(ends.first, ends.second);
      }
      for (size_t w = 0; w < held.size(); ++w) {
        if (lost[w]) continue;
        while (w == 0 ? at_owner > 0 : !held[w].empty()) {
          drop_one(static_cast<int>(w));
          again = true;
        }
      }
    }
  }
};

// All orders of a number of events; each state is looked at once.
struct Explorer {
  std::set<std::string> seen;
  size_t num_states = 0;

  static std::string key(const World& world, int left) {
    std::string text = std::to_string(left) + (world.created ? "c" : "-") + std::to_string(world.at_owner);
    for (const auto& one : world.held) {
      text += "|";
      for (const Grant& g : one) text += std::to_string(g.giver) + "." + std::to_string(g.number) + " ";
    }
    for (const auto& [ends, messages] : world.streams) {
      text += "/" + std::to_string(ends.first) + ">" + std::to_string(ends.second);
      for (const auto& m : messages)
        text += std::to_string(m.kind) + "." + std::to_string(m.grant.giver) + "." + std::to_string(m.grant.number);
    }
    return text + "#" + std::to_string(world.owner.num_held()) + (world.owner.empty() ? "e" : "h");
  }

  void run(const World& world, int left) {
    if (!seen.insert(key(world, left)).second) return;
    ++num_states;
    ASSERT_TRUE(!world.is_held() || world.alive()) << "the value ended while it was held";
    World end = world;
    end.drain();
    ASSERT_FALSE(end.alive()) << "the value never ends";
    if (left == 0) return;
    for (const auto& [ends, messages] : world.streams) {
      World next = world;
      next.deliver(ends.first, ends.second);
      run(next, left - 1);
    }
    const int size = static_cast<int>(world.held.size());
    for (int from = 0; from < size; ++from) {
      const bool has = from == 0 ? world.at_owner > 0 : !world.held[static_cast<size_t>(from)].empty();
      if (!has) continue;
      for (int to = 0; to < size; ++to) {
        if (to == from) continue;
        World next = world;
        next.pass(from, to);
        run(next, left - 1);
      }
      World next = world;
      next.drop_one(from);
      run(next, left - 1);
    }
  }
};

World started() {
  World world(4);
  world.held[1].insert({1, 1});  // worker 1 asks worker 0 to create the value, and holds it at once
  world.streams[{1, 0}].push_back({World::Message::kCreate, {}, -1});
  return world;
}

TEST(ReferenceHolders, AValueLivesWhileItIsHeldAndEndsAtLastInEveryOrder) {
  Explorer explorer;

  explorer.run(started(), 7);

  EXPECT_GT(explorer.num_states, 10'000u);
}

TEST(ReferenceHolders, LongRandomOrdersWithLossesNeverEndAHeldValueAndLeaveNone) {
  const char* scale = std::getenv("HASTEN_TEST_SCALE");
  const int rounds = static_cast<int>(2000 * (scale ? std::atof(scale) : 1));
  std::mt19937 random(20);
  for (int round = 0; round < rounds; ++round) {
    World world = started();
    world.deliver(1, 0);
    bool may_lose = round % 2 == 1;
    for (int step = 0; step < 60; ++step) {
      const int from = static_cast<int>(random() % 4);
      const bool has = !world.lost[static_cast<size_t>(from)] &&
                       (from == 0 ? world.at_owner > 0 : !world.held[static_cast<size_t>(from)].empty());
      const auto action = random() % 8;
      if (action < 4 && !world.streams.empty()) {
        auto stream = world.streams.begin();
        std::advance(stream, static_cast<std::ptrdiff_t>(random() % world.streams.size()));
        const auto ends = stream->first;
        world.deliver(ends.first, ends.second);
      } else if (action < 6 && has) {
        const int to = static_cast<int>(random() % 4);
        if (to != from && !world.lost[static_cast<size_t>(to)]) world.pass(from, to);
      } else if (action == 6 && has) {
        world.drop_one(from);
      } else if (action == 7 && may_lose && step > 20) {
        may_lose = false;
        world.lose(1 + static_cast<int>(random() % 3), random() % 2 == 0);
        world.end_grace();
      }
      ASSERT_TRUE(!world.is_held() || world.alive()) << "seed 20, round " << round << ", step " << step;
    }
    world.drain();
    ASSERT_FALSE(world.alive()) << "seed 20, round " << round;
  }
}

TEST(ReferenceHolders, AGrantThatComesAfterItsDropOrItsConfirmationCountsOnce) {
  ReferenceHolders holders;
  const Grant late{2, 9};

  holders.drop(late);
  EXPECT_FALSE(holders.empty());
  holders.grant(late, 3);
  EXPECT_TRUE(holders.empty());

  holders.confirm(late, 3);
  holders.drop(late);
  holders.grant(late, 3);
  EXPECT_TRUE(holders.empty());
}

}  // namespace
}  // namespace hasten::rpc
