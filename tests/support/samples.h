// Small datasets and samplers that tests of loaders share.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/datasets/stateful.h>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace hasten::testing {

/// Sample i is the number i; counts how often samples were read, over all its copies.
class Range : public torch::data::datasets::Dataset<Range, size_t> {
 public:
  explicit Range(size_t size) : size_(size), reads_(std::make_shared<std::atomic<size_t>>(0)) {}
  size_t get(size_t index) override {
    ++*reads_;
    return index;
  }
  std::optional<size_t> size() const override { return size_; }
  std::shared_ptr<std::atomic<size_t>> reads() const { return reads_; }

 private:
  size_t size_;
  std::shared_ptr<std::atomic<size_t>> reads_;
};

/// Sample i is the number i, but one of them cannot be read.
class Broken : public torch::data::datasets::Dataset<Broken, size_t> {
 public:
  Broken(size_t bad, size_t size) : bad_(bad), size_(size) {}
  size_t get(size_t index) override {
    if (index == bad_) throw std::runtime_error("a hole in the disk");
    return index;
  }
  std::optional<size_t> size() const override { return size_; }

 private:
  size_t bad_, size_;
};

/// A stream of the numbers 0 … size - 1, which knows its length unless it is told not to.
class Counting : public torch::data::datasets::StatefulDataset<Counting, std::vector<size_t>> {
 public:
  explicit Counting(size_t size, bool knows_size = true) : size_(size), knows_size_(knows_size) {}
  void reset() override { next_ = 0; }
  std::optional<std::vector<size_t>> get_batch(size_t batch_size) override {
    if (next_ == size_) return std::nullopt;
    std::vector<size_t> batch;
    for (; next_ < size_ && batch.size() < batch_size; ++next_) batch.push_back(next_);
    return batch;
  }
  std::optional<size_t> size() const override { return knows_size_ ? std::optional(size_) : std::nullopt; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t size_, next_ = 0;
  bool knows_size_;
};

/// Draws each index when it is asked for it, with replacement.
class LazySampler : public torch::data::samplers::Sampler<> {
 public:
  explicit LazySampler(size_t size) : size_(size) {}
  void reset(std::optional<size_t> = std::nullopt) override { given_ = 0; }
  std::optional<std::vector<size_t>> next(size_t batch_size) override {
    std::vector<size_t> batch;
    for (; given_ < size_ && batch.size() < batch_size; ++given_) {
      batch.push_back(torch::randint(static_cast<int64_t>(size_), {}, torch::kInt64).item<int64_t>());
    }
    if (batch.empty()) return std::nullopt;
    return batch;
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t size_, given_ = 0;
};

}  // namespace hasten::testing
