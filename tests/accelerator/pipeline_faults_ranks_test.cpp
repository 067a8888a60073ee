// A rank of a pipeline that dies or throws in any action of its order: the others end soon, and name it.
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "accelerator/pipeline_faults.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using plan::OrderKind;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

HASTEN_PROCESS_CASE(pipeline_with_a_fault) {
  return run_pipeline_fault();
}

class PipelineFaults : public ::testing::TestWithParam<OrderKind> {};
INSTANTIATE_TEST_SUITE_P(Orders, PipelineFaults,
                         ::testing::Values(OrderKind::k1F1B, OrderKind::kInterleaved1F1B,
                                           OrderKind::kInterleavedZeroBubble),
                         [](const auto& info) {
                           return std::string(info.param == OrderKind::k1F1B              ? "OneForwardOneBackward"
                                              : info.param == OrderKind::kInterleaved1F1B ? "Interleaved"
                                                                                          : "ZeroBubble");
                         });

TEST_P(PipelineFaults, ARankThatIsKilledInAnyActionIsNamedByTheOthers) {
  // In the second step, so that the record of the first is behind it.
  const PipelineFault kFaults[] = {
      {.rank = 0, .event = "forward", .number = 10},  {.rank = 1, .event = "backward", .number = 9},
      {.rank = 2, .event = "weight", .number = 8},    {.rank = 1, .event = "send", .number = 11},
      {.rank = 0, .event = "optimizer", .number = 2}, {.rank = 2, .event = "forward", .number = 1}};
  for (PipelineFault fault : kFaults) {
    fault.order = GetParam();
    expect_fault_named("pipeline_with_a_fault", fault);
  }
}

TEST_P(PipelineFaults, ARankThatThrowsInAnyActionIsQuotedByTheOthersAndLeavesNoThread) {
  const auto num_threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  std::ptrdiff_t before = 0;
  for (const char* event : {"forward", "forward", "backward", "weight", "send", "receive", "optimizer"}) {
    const PipelineFault fault{.rank = 1,
                              .event = event,
                              .number = std::string(event) == "optimizer" ? 2 : 9,
                              .order = GetParam(),
                              .throws = true};
    std::vector<std::shared_ptr<FaultyNetImpl>> nets;
    for (int i = 0; i < kFaultRanks; ++i) nets.push_back(net_with_fault(fault));

    const auto words = run_ranks_collecting(kFaultRanks, [&](process::Process& process) {
      const Accelerator accelerator(process, options_with_fault(fault));
      train_with_fault(accelerator, nets[static_cast<size_t>(process.rank())], fault);
    });

    EXPECT_THAT(words[1], HasSubstr(kFaultWords)) << event;
    for (const int rank : {0, 2}) {
      EXPECT_THAT(words[static_cast<size_t>(rank)], AllOf(HasSubstr("rank 1 failed"), HasSubstr(kFaultWords)))
          << event << " rank " << rank;
    }
    // A model that is divided keeps its group, whose messages may have a thread.
    nets.clear();
    // libtorch keeps threads of its own from the first run on. Those of a rank's OpenMP end a while behind the rank.
    if (before == 0) before = num_threads();
    const auto deadline = std::chrono::steady_clock::now() + kFaultLimit;
    while (num_threads() > before && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_LE(num_threads(), before) << event;
  }
}

// A rank that waits for a value or a gradient, while the rank that would send it stands still.
class PipelineFaultsInFolder : public InFolder, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Directions, PipelineFaultsInFolder, ::testing::Values("holds", "holds_back"));

TEST_P(PipelineFaultsInFolder, ARankThatIsKilledAsItReceivesIsNamedByTheOthers) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const bool is_forward = std::string(GetParam()) == "holds";
  const int holding = is_forward ? 0 : 2, killed = 1;
  const PipelineFault fault{.rank = holding, .event = GetParam(), .number = 9, .pipe = path("pipe")};
  Processes processes(kFaultRanks, "pipeline_with_a_fault", {{"HASTEN_TEST_FAULT", fault.words()}});

  ASSERT_TRUE(processes.wait_for_output(holding, "holds"));
  processes.signal(killed, SIGKILL);
  std::fclose(std::fopen(path("pipe").c_str(), "w"));  // waits for the one that reads

  expect_named(processes.wait(kFaultLimit), killed, false, GetParam());
}

// A handful of those of pipeline_faults_slow_test.cpp.
TEST(RandomPipelineFaults, AreNamedByTheOtherRanks) {
  for (uint64_t seed = 0; seed < 4; ++seed) expect_fault_named("pipeline_with_a_fault", PipelineFault::draw(seed));
}

}  // namespace
}  // namespace hasten
