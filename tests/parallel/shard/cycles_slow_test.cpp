// A thousand models that are prepared, trained and given up at random leave no descriptor, no mapping and no file.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "parallel/shard/trained.h"
#include "support/folder.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;

int64_t num_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// Mappings of regions of this library, and of files in a folder.
int64_t num_mappings(const std::string& folder) {
  std::ifstream file("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    const bool ours = line.find("memfd:hasten-") != std::string::npos || line.find(folder) != std::string::npos;
    count += ours ? 1 : 0;
  }
  return count;
}

using ShardCycles = testing::InFolder;

TEST_F(ShardCycles, LeaveNoDescriptorNoMappingAndNoFile) {
  run_ranks(2,
            [&](auto& process) {
              std::mt19937 random(3);  // the same on both ranks
              std::unique_ptr<Trained<testing::Mlp>> kept;
              const auto cycle = [&] {
                auto options = small_units(kStages[random() % 3]);
                if (random() % 4 == 0) {
                  options.optimizer_offload = {
                      .device = OffloadDevice::kFile, .path = path("state"), .tile_numel = 64, .queue_depth = 2};
                }
                if (random() % 4 == 0) {
                  options.parameter_offload = {.device = OffloadDevice::kFile, .path = path("parameters")};
                }
                if (random() % 3 == 0) options.param_dtype = "bfloat16";
                auto t = std::make_unique<Trained<testing::Mlp>>(process.group(), options, adamw);
                if (random() % 3 == 0) train(*t, "mlp", 1 + static_cast<int>(random() % 2));
                if (random() % 5 == 0) {
                  const torch::NoGradGuard no_grad;
                  t->net->parameters()[0].mul_(0.5);  // a private copy that is never taken over
                }
                // Two models at a time, now and then, and ends in either order.
                if (random() % 4 == 0) std::swap(t, kept);
                process.group().barrier();
              };
              for (int i = 0; i < 20; ++i) cycle();
              kept.reset();
              process.group().barrier();
              const auto descriptors = num_descriptors();
              process.group().barrier();
              for (int i = 0; i < 1000; ++i) cycle();
              kept.reset();
              process.group().barrier();

              EXPECT_LT(num_descriptors(), descriptors + 20);  // a leak of one in ten cycles would be 100
              process.group().barrier();
            },
            {.timeout = std::chrono::seconds(60)});

  EXPECT_EQ(num_mappings(path("")), 0);
  for (const char* folder : {"state", "parameters"}) {
    EXPECT_TRUE(std::filesystem::is_empty(path(folder))) << folder;
  }
}

}  // namespace
}  // namespace hasten::parallel
