// What goes wrong in a run of real processes: each fault ends every rank with the right words, and nobody
// waits.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "hasten/accelerator.h"
#include "hasten/data/dataset/idx.h"
#include "support/models.h"
#include "support/processes.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::Mlp;
using testing::Processes;
using testing::ProcessResult;

// Every fault must have ended the run by then; nothing in it waits for a timeout.
constexpr auto kSoon = std::chrono::seconds(10);

auto ends_with(int exit_code, const std::string& words) {
  return AllOf(Field("exit_code", &ProcessResult::exit_code, exit_code),
               Field("output", &ProcessResult::output, HasSubstr(words)));
}

std::vector<ProcessResult> run(int world_size, const std::string& name,
                               const std::map<std::string, std::string>& environment = {}) {
  return Processes(world_size, name, environment).wait(kSoon);
}

// Trains until `at_step_three` has done its harm.
int train(const std::function<void(const Accelerator&)>& at_step_three) {
  const Accelerator accelerator;
  Mlp net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const auto loss = model(torch::ones({2, 8})).sum();
    if (step == 3) at_step_three(accelerator);
    accelerator.backward(loss);
    optimizer.step();
  }
  return 0;
}

HASTEN_PROCESS_CASE(nothing) {
  return train([](const Accelerator&) {});
}

TEST(FaultsRanks, WithoutAFaultAllEndWell) {
  EXPECT_THAT(run(3, "nothing"), Each(ends_with(0, "")));
}

HASTEN_PROCESS_CASE(mismatched_models) {
  const Accelerator accelerator;
  torch::nn::Sequential model(torch::nn::Linear(4, 3 + accelerator.rank() / 2));
  const auto prepared = accelerator.prepare(model);
  return 0;
}

TEST(FaultsRanks, MismatchedModelsNameTheParameterAndTheRanks) {
  EXPECT_THAT(run(3, "mismatched_models"), Each(ends_with(2,
                                                          "rank 0 has '0.weight: parameter Float [3, 4]', rank 2 has "
                                                          "'0.weight: parameter Float [4, 4]'")));
}

HASTEN_PROCESS_CASE(rank_throws) {
  return train([](const Accelerator& accelerator) {
    if (accelerator.rank() == 1) throw std::runtime_error("the simulation diverged");
  });
}

TEST(FaultsRanks, ARankThatThrowsIsQuotedByAllOthers) {
  const auto results = run(3, "rank_throws");

  EXPECT_THAT(results[1], ends_with(1, "the simulation diverged"));
  for (const int survivor : {0, 2}) {
    EXPECT_THAT(results[survivor], ends_with(1, "rank 1 failed: the simulation diverged"));
  }
}

HASTEN_PROCESS_CASE(rank_zero_throws) {
  return train([](const Accelerator& accelerator) {
    if (accelerator.rank() == 0) throw std::runtime_error("the main rank has no disk left");
  });
}

TEST(FaultsRanks, TheRankThatServesTheStoreIsQuotedToo) {
  const auto results = run(3, "rank_zero_throws");

  EXPECT_THAT(results[0], ends_with(1, "the main rank has no disk left"));
  for (const int survivor : {1, 2}) {
    EXPECT_THAT(results[survivor], ends_with(1, "rank 0 failed: the main rank has no disk left"));
  }
}

HASTEN_PROCESS_CASE(rank_exits) {
  return train([](const Accelerator& accelerator) {
    if (accelerator.rank() == 2) _exit(7);
  });
}

TEST(FaultsRanks, ARankThatExitsInMidStepEndsTheOthers) {
  const auto results = run(3, "rank_exits");

  EXPECT_EQ(results[2].exit_code, 7);
  for (const int survivor : {0, 1}) EXPECT_THAT(results[survivor], ends_with(1, "was not completed because"));
}

HASTEN_PROCESS_CASE(rank_stops) {
  return train([](const Accelerator& accelerator) {
    if (accelerator.rank() != 1) return;
    std::printf("in step three\n");
    std::fflush(stdout);
    while (true) pause();
  });
}

TEST(FaultsRanks, AKilledRankEndsTheOthers) {
  Processes processes(2, "rank_stops");

  ASSERT_TRUE(processes.wait_for_output(1, "in step three"));
  processes.signal(1, SIGKILL);
  const auto results = processes.wait(kSoon);

  EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
  // Its page is known to the others' watch from their next look on.
  EXPECT_THAT(results[0], AnyOf(ends_with(1, "a peer closed its connection without a word"),
                                ends_with(1, "rank 1 has ended without a word: it was killed")));
}

HASTEN_PROCESS_CASE(mismatched_shapes) {
  const Accelerator accelerator;
  accelerator.reduce(torch::ones({accelerator.rank() == 1 ? 20 : 10}));
  return 0;
}

HASTEN_PROCESS_CASE(mismatched_dtypes) {
  const Accelerator accelerator;
  accelerator.gather(torch::ones({4}, accelerator.rank() == 1 ? at::kInt : at::kFloat));
  return 0;
}

TEST(FaultsRanks, MismatchedShapesAndDtypesNameBothSides) {
  EXPECT_THAT(run(2, "mismatched_shapes"), Each(ends_with(1, "Float[20]")));
  EXPECT_THAT(run(2, "mismatched_dtypes"), Each(ends_with(1, "Int[")));
}

TEST(FaultsRanks, AMissingVariableIsNamed) {
  EXPECT_THAT(run(2, "nothing", {{"MASTER_ADDR", ""}}), Each(ends_with(2, "MASTER_ADDR")));
}

HASTEN_PROCESS_CASE(waits_a_second) {
  const Accelerator accelerator({.timeout = std::chrono::seconds(1)});
  return 0;
}

TEST(FaultsRanks, AStartWaitsForAsLongAsTheOptionsSay) {
  const auto results = run(1, "waits_a_second", {{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}});

  EXPECT_THAT(results[0], ends_with(1, "after 1 s rank 1"));
}

TEST(FaultsRanks, ABusyPortIsNamed) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));

  const auto results = run(1, "nothing", {{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", port}});
  close(fd);

  EXPECT_THAT(results[0], ends_with(2, "the store cannot listen on 127.0.0.1:" + port + ": Address already in use"));
}

HASTEN_PROCESS_CASE(reads_data) {
  const Accelerator accelerator;
  const auto root = Environment::current().text("TEST_DATA").value_or("");
  data::fashion_mnist(root, true);
  return 0;
}

TEST(FaultsRanks, AMissingOrTruncatedDataFileIsNamedOnEveryRank) {
  const auto folder = std::filesystem::temp_directory_path() / ("hasten-data-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  EXPECT_THAT(run(2, "reads_data", {{"TEST_DATA", folder.string()}}),
              Each(ends_with(1, text("no Fashion-MNIST in '", folder.string(), "'"))));

  std::ofstream(folder / "train-images-idx3-ubyte.gz") << "cut";
  std::ofstream(folder / "train-labels-idx1-ubyte.gz") << "cut";

  EXPECT_THAT(run(2, "reads_data", {{"TEST_DATA", folder.string()}}),
              Each(ends_with(1, (folder / "train-images-idx3-ubyte.gz").string())));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace hasten
