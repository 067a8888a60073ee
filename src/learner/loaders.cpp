// See loaders.h, and what batches and models need at run time.
#include "hasten/learner/loaders.h"

#include "hasten/learner/model.h"
#include "learner/counts.h"

namespace hasten::learner {
namespace detail {

void require_inputs(size_t given, size_t wanted) {
  if (given == wanted) return;
  throw UsageError(Origin{"learner"}, "the model's forward takes ", wanted, " inputs, the batch has ", given,
                   ". Set BatchOptions::n_inp or targets, or give the AnyModel a lambda.");
}

core::Value value_of(const data::LoaderState& state) {
  auto value =
      core::Value::map({{"epoch", state.epoch}, {"position", state.position}, {"num_samples", state.num_samples}});
  // Seeds have all 64 bits, which a JSON number has not.
  value["seed"] = state.seed ? core::Value(text(*state.seed)) : core::Value();
  auto generator = core::Value::list();
  for (const uint8_t byte : state.generator) generator.push_back(static_cast<int64_t>(byte));
  value["generator"] = std::move(generator);
  return value;
}

data::LoaderState state_of(const core::Value& value) {
  data::LoaderState state;
  const auto& seed = value.at("seed");
  state.seed = seed.is_null() ? std::nullopt : std::optional<uint64_t>(std::stoull(seed.as_string()));
  state.epoch = static_cast<uint64_t>(value.at("epoch").as_int());
  state.position = static_cast<uint64_t>(value.at("position").as_int());
  state.num_samples = static_cast<uint64_t>(value.at("num_samples").as_int());
  for (const auto& byte : value.at("generator").as_list())
    state.generator.push_back(static_cast<uint8_t>(byte.as_int()));
  return state;
}

void move_to(c10::Device device, Batch& batch) {
  for (auto* tensors : {&batch.inputs, &batch.targets}) {
    for (auto& tensor : *tensors) tensor = tensor.to(device);
  }
}

namespace {

class PreparedBatches final : public PreparedLoader {
 public:
  PreparedBatches(std::vector<Batch> batches, c10::Device device) : batches_(std::move(batches)), device_(device) {}
  size_t size() const override { return batches_.size(); }
  void begin() override {
    position_ = start_;
    start_ = 0;
  }
  bool next(Batch& batch) override {
    if (position_ >= batches_.size()) return false;
    batch = batches_[position_++];
    move_to(device_, batch);
    return true;
  }
  void end() noexcept override {}
  core::Value state() const override {
    return core::Value::map({{"position", position_}, {"num_samples", batches_.size()}});
  }
  void load_state(const core::Value& state) override {
    const auto size = state.at("num_samples").as_int();
    if (size != static_cast<int64_t>(batches_.size())) {
      throw UsageError(Origin{"learner"}, "the state of a loader with ", size, " batches for one with ",
                       batches_.size(), "; resume with the same data.");
    }
    start_ = static_cast<size_t>(state.at("position").as_int());
  }

 private:
  std::vector<Batch> batches_;
  c10::Device device_;
  size_t position_ = 0, start_ = 0;
};

class BatchesSource final : public LoaderSource {
 public:
  explicit BatchesSource(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  std::unique_ptr<PreparedLoader> prepare(const Accelerator& accelerator, LoaderOrder order) const override {
    std::vector<Batch> mine;
    const auto world = static_cast<size_t>(accelerator.world_size());
    if (batches_.size() % world != 0) {
      throw UsageError(
          Origin{"learner", accelerator.rank(), accelerator.world_size()}, batches_.size(), " batches in memory for ",
          world,
          " ranks; expected a multiple, so that all ranks get as many. Use a data::loader, which evens them out.");
    }
    const size_t own = batches_.size() / world, rank = static_cast<size_t>(accelerator.rank());
    for (size_t i = 0; i < own; ++i)
      mine.push_back(batches_[order == LoaderOrder::kBlocks ? rank * own + i : i * world + rank]);
    return std::make_unique<PreparedBatches>(std::move(mine), accelerator.device());
  }
  std::shared_ptr<const LoaderSource> in_order() const override { return std::make_shared<BatchesSource>(batches_); }
  std::optional<size_t> num_samples() const override {
    size_t count = 0;
    for (const auto& batch : batches_) count += static_cast<size_t>(batch.size());
    return count;
  }
  size_t batch_size() const override { return batches_.empty() ? 0 : static_cast<size_t>(batches_.front().size()); }

 private:
  std::vector<Batch> batches_;
};

}  // namespace

std::shared_ptr<const LoaderSource> source_of(std::vector<Batch> batches) {
  return std::make_shared<BatchesSource>(std::move(batches));
}

}  // namespace detail

Loader tensor_loader(const at::Tensor& inputs, const at::Tensor& targets, const TensorLoadersOptions& options) {
  const data::TensorDataset dataset(inputs, targets);
  auto loading = torch::data::DataLoaderOptions(
      static_cast<size_t>(at_least(1, "TensorLoadersOptions::batch_size", options.batch_size)));
  loading.drop_last(options.drop_last);
  const size_t size = *dataset.size();
  if (!options.shuffle) return data::loader(dataset, data::SeedableSequentialSampler(size), loading);
  return data::loader(dataset, data::SeedableRandomSampler(size, {.seed = options.seed}), loading);
}

Loaders tensor_loaders(const torch::data::Example<>& train, const torch::data::Example<>& valid,
                       const TensorLoadersOptions& options) {
  auto in_order = options;
  in_order.shuffle = in_order.drop_last = false;
  return {.train = tensor_loader(train.data, train.target, options),
          .valid = tensor_loader(valid.data, valid.target, in_order)};
}

}  // namespace hasten::learner
