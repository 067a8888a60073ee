#include "hasten/comm/init_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;

GroupOptions quick() {
  return {.timeout = std::chrono::seconds(20), .address = "127.0.0.1"};
}

// The sum of rank + 1 over ranks that are threads, each of which makes its group by `init`.
template <class Init>
std::vector<int64_t> sums(int world_size, const Init& init) {
  std::vector<int64_t> found(static_cast<size_t>(world_size), -1);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        const Group group = init(rank);
        auto number = torch::full({1}, rank + 1, at::kLong);
        group.all_reduce_(number);
        found[static_cast<size_t>(rank)] = number.item<int64_t>();
      });
    }
  }
  return found;
}

int free_port() {
  return Store::tcp({.server = true}).port();
}

TEST(InitMethod, AddressesAreParsedAsTorchsAre) {
  const InitMethod tcp = parse_init_method("tcp://10.0.0.1:23456?rank=1&world_size=4");
  const InitMethod v6 = parse_init_method("tcp://[::1]:99");
  const InitMethod file = parse_init_method("file:///shared/job");

  EXPECT_EQ(tcp.host, "10.0.0.1");
  EXPECT_EQ(tcp.port, 23456);
  EXPECT_EQ(tcp.rank, 1);
  EXPECT_EQ(tcp.world_size, 4);
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(file.path, "/shared/job");
  EXPECT_EQ(parse_init_method("env://").kind, InitMethod::Kind::kEnvironment);
}

TEST(InitMethod, WrongAddressesAreRefusedByName) {
  const auto refused = [](const std::string& address, const std::string& words) {
    EXPECT_THAT([&] { parse_init_method(address); }, ::testing::ThrowsMessage<UsageError>(HasSubstr(words)));
  };

  refused("10.0.0.1:2", "has no scheme");
  refused("tpc://a:1", "has the scheme 'tpc', did you mean 'tcp'?");
  refused("tcp://host", "has no HOST:PORT");
  refused("tcp://host:0", "has port 0");
  refused("tcp://host:x", "has port 'x', which is no number");
  refused("file://", "names no file");
  refused("env://host", "has 'host' behind env://");
  refused("tcp://a:1?rank=0&size=2", "has the parameter 'size'");
}

TEST(InitMethod, RanksMeetAtAnAddressInAFileAndByTheEnvironment) {
  const std::string port = std::to_string(free_port());
  EXPECT_EQ(sums(3,
                 [&](int rank) {
                   return init_group("tcp://127.0.0.1:" + port, {.rank = rank, .world_size = 3, .group = quick()});
                 }),
            std::vector<int64_t>(3, 6));

  const auto file = std::filesystem::temp_directory_path() / ("hasten-init-" + std::to_string(getpid()));
  EXPECT_EQ(sums(2,
                 [&](int rank) {
                   return init_group("file://" + file.string() + "?world_size=2&rank=" + std::to_string(rank),
                                     {.group = quick()});
                 }),
            std::vector<int64_t>(2, 3));
  std::filesystem::remove(file);

  const std::string other = std::to_string(free_port());
  EXPECT_EQ(sums(2,
                 [&](int rank) {
                   return init_group("env://", {.group = quick()},
                                     Environment::of({{"MASTER_ADDR", "127.0.0.1"},
                                                      {"MASTER_PORT", other},
                                                      {"RANK", std::to_string(rank)},
                                                      {"WORLD_SIZE", "2"}}));
                 }),
            std::vector<int64_t>(2, 3));
}

TEST(InitMethod, WhatIsMissingOrContradictsIsNamed) {
  const auto refused = [](const std::string& address, const InitOptions& options, const std::string& words) {
    EXPECT_THAT(
        [&] {
          init_group(address, options, Environment::of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
        },
        ::testing::ThrowsMessage<UsageError>(HasSubstr(words)));
  };

  refused("tcp://127.0.0.1:9", {}, "lacks the rank");
  refused("tcp://127.0.0.1:9?rank=1", {.rank = 0, .world_size = 2}, "is given the ranks 0 and 1");
  refused("tcp://127.0.0.1:9", {.rank = 2, .world_size = 2}, "rank 2 of a world of 2");
  refused("env://", {}, "needs MASTER_ADDR");
}

}  // namespace
}  // namespace hasten::comm
