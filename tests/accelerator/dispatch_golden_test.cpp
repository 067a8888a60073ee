// Dispatching from rank 0, against Accelerate's DataLoaderDispatcher, through the front door with real ranks.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "accelerator/golden_loaders.h"

namespace hasten {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
using torch::data::samplers::SequentialSampler;

AcceleratorOptions dispatching(const json& input) {
  AcceleratorOptions options;
  options.loader.split_batches = input.at("split_batches");
  options.loader.dispatch_batches = true;
  return options;
}

at::Tensor column(c10::ArrayRef<size_t> indices) {
  return torch::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
}

using Named = std::map<std::string, at::Tensor>;
using Listed = std::pair<at::Tensor, std::vector<at::Tensor>>;

/// Item i is {"x": [i, 10i], "y": i}.
class Dicts : public torch::data::datasets::BatchDataset<Dicts, Named> {
 public:
  explicit Dicts(size_t size) : size_(size) {}
  Named get_batch(c10::ArrayRef<size_t> indices) override {
    const auto y = column(indices);
    return {{"x", torch::stack({y, 10 * y}, 1)}, {"y", y}};
  }
  std::optional<size_t> size() const override { return size_; }

 private:
  size_t size_;
};

/// Item i is (i, [[i, i + 100]]).
class Tuples : public torch::data::datasets::BatchDataset<Tuples, Listed> {
 public:
  explicit Tuples(size_t size) : size_(size) {}
  Listed get_batch(c10::ArrayRef<size_t> indices) override {
    const auto i = column(indices);
    return {i, {torch::stack({i, i + 100}, 1)}};
  }
  std::optional<size_t> size() const override { return size_; }

 private:
  size_t size_;
};

json values(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor.item<int64_t>();
  json rows = json::array();
  for (int64_t i = 0; i < tensor.size(0); ++i) rows.push_back(values(tensor[i]));
  return rows;
}

json dict_values(const Named& batch) {
  return {{"x", values(batch.at("x"))}, {"y", values(batch.at("y"))}};
}

/// Python's collation gives ([i …], [[[i, i + 100] …]]) as tuples, written as lists.
json tuple_values(const Listed& batch) {
  return json::array({values(batch.first), json::array({values(batch.second.at(0))})});
}

json dispatched(const Accelerator& accelerator, const GoldenCase& golden) {
  const json& input = golden.input;
  const size_t n = input.at("n"), skip = input.at("num_batches_to_skip");
  const auto options = testing::loader_options_of(input);
  const auto pass = [&](const auto& whole, auto to_json) {
    return testing::one_pass(Accelerator::skip_first_batches(whole, skip), accelerator.gradient_state(), to_json);
  };
  const std::string nested = input.value("nested", "");
  if (nested == "dict") return pass(accelerator.data_loader<SequentialSampler>(Dicts(n), options), dict_values);
  if (nested == "tuple") return pass(accelerator.data_loader<SequentialSampler>(Tuples(n), options), tuple_values);
  if (input.at("iterable")) return pass(accelerator.data_loader(testing::Counting(n), options), nullptr);
  return pass(accelerator.data_loader<SequentialSampler>(testing::Range(n), options), nullptr);
}

/// The steps of the whole order, what each rank gets of them, and where the loop is; written down apart from
/// the code under test. A step is cut into parts of ceil(samples / ranks), the last one filled up with the
/// first step's start.
json steps_of(const GoldenCase& golden) {
  const json& input = golden.input;
  const size_t n = input.at("n");
  const auto batch_size = static_cast<size_t>(testing::positive(input.at("batch_size")));
  const auto world_size = static_cast<size_t>(testing::positive(input.at("num_processes")));
  if (input.at("split_batches") && batch_size % world_size != 0) return testing::golden_error("ValueError");
  const size_t step = batch_size * (input.at("split_batches") ? 1 : world_size);
  json batches(world_size, json::array()), ends(world_size, json::array()), remainders(world_size, json::array());
  for (size_t begin = step * input.at("num_batches_to_skip").get<size_t>(); begin < n; begin += step) {
    const size_t size = std::min(step, n - begin), part = (size + world_size - 1) / world_size;
    if (size < step && input.at("drop_last")) break;
    const bool last = begin + step >= n || (input.at("drop_last") && begin + 2 * step > n);
    for (size_t rank = 0; rank < world_size; ++rank) {
      json rows = json::array();
      for (size_t row = rank * part; row < (rank + 1) * part; ++row) {
        rows.push_back(row < size ? begin + row : (row - size) % std::min({world_size, step, n}));
      }
      batches[rank].push_back(rows);
      ends[rank].push_back(last);
      remainders[rank].push_back(last ? static_cast<int64_t>(size) : -1);
    }
  }
  json lengths = json::array();
  for (const json& rank : batches) lengths.push_back(rank.size());
  return {{"batches", batches}, {"end_of_dataloader", ends}, {"remainder", remainders}, {"len", lengths}};
}

/// docs/differences.md, len-differs: the length is the number of batches that are given.
json length_is_what_is_given(const GoldenCase& golden) {
  return {{"len", steps_of(golden).at("len")}};
}

/// docs/differences.md, error-when-no-batch: a pass with nothing to give ends.
json nothing_is_given(const GoldenCase& golden) {
  const json nothing(golden.input.at("num_processes").get<size_t>(), json::array());
  return {{"batches", nothing}, {"end_of_dataloader", nothing}, {"remainder", nothing}};
}

TEST(DispatcherGolden, RanksGetTheirSlicesAsFromThePeer) {
  GoldenTopic topic("dispatcher");
  topic.on_quirk("len-differs", length_is_what_is_given);
  topic.on_quirk("error-when-no-batch", nothing_is_given);
  topic.on_quirk("skips-in-base-batches", steps_of);
  topic.on_quirk("empty-batch-on-some-ranks", steps_of);

  auto given = testing::on_ranks(topic, dispatching, dispatched);

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] { return testing::by_rank(given.at(golden.name), "batches"); });
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten
