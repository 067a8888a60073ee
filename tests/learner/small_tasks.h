// Small models and data for the Learner's tests on one process.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "hasten/learner/learner.h"
#include "hasten/learner/metrics.h"

namespace hasten::learner {

inline torch::nn::Sequential net(double dropout = 0) {
  namespace nn = torch::nn;
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Dropout(dropout), nn::Linear(8, 3));
}

/// Inputs [count, 6]; the class is the largest of the first three.
inline torch::data::Example<> rows(int64_t count, uint64_t seed) {
  torch::manual_seed(seed);
  const auto x = at::randn({count, 6});
  return {x, x.slice(1, 0, 3).argmax(1)};
}

/// Training data in batches of 8, the last of what is left, and 20 rows of validation.
inline Loaders data_of(int64_t count = 50, bool shuffle = true) {
  return tensor_loaders(rows(count, 1), rows(20, 2),
                        {.batch_size = 8, .shuffle = shuffle, .drop_last = false, .seed = 5});
}

inline LearnerOptions quiet(std::filesystem::path path = ::testing::TempDir()) {
  return {.loss = cross_entropy(), .metrics = {accuracy()}, .splitter = child_groups({0, 2}), .path = std::move(path)};
}

inline std::map<std::string, at::Tensor> state_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> result;
  for (const auto& one : module.named_parameters()) result[one.key()] = one.value().detach().clone();
  for (const auto& one : module.named_buffers()) result[one.key()] = one.value().clone();
  return result;
}

inline void expect_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

/// Returns all lines of the journals that trackers write below a folder.
inline std::string contents_of_journals(const std::filesystem::path& folder) {
  std::string all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".jsonl") continue;
    std::ifstream file(entry.path());
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  return all;
}

/// Saves at one training batch and stops there, on all ranks.
struct SaveAndStop : Callback {
  SaveAndStop(int64_t batch, std::string into) : at(batch), folder(std::move(into)) {}
  std::string_view name() const override { return "save_and_stop"; }
  int order() const override { return 95; }
  void after_batch(Learner& learn) override {
    if (!learn.training() || learn.train_iter() != at) return;
    learn.save_checkpoint(folder);
    learn.cancel(Scope::kFit);
  }
  int64_t at;
  std::string folder;
};

}  // namespace hasten::learner
