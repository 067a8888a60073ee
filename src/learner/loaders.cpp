// See loaders.h, and what batches and models need at run time.
#include "hasten/learner/loaders.h"

#include <ATen/DeviceAccelerator.h>

#include "hasten/core/number.h"
#include "hasten/data/sampler/permutation.h"
#include "hasten/learner/model.h"
#include "learner/at_least.h"

namespace hasten::learner {
namespace detail {

void require_inputs(size_t given, size_t expected) {
  if (given == expected) return;
  throw UsageError(Origin{"learner"}, "the model's forward takes ", expected, " inputs, the batch has ", given,
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
  state.seed = seed.is_null() ? std::nullopt : core::whole_number<uint64_t>(seed.as_string());
  state.epoch = static_cast<uint64_t>(value.at("epoch").as_int());
  state.position = static_cast<uint64_t>(value.at("position").as_int());
  state.num_samples = static_cast<uint64_t>(value.at("num_samples").as_int());
  for (const auto& byte : value.at("generator").as_list())
    state.generator.push_back(static_cast<uint8_t>(byte.as_int()));
  return state;
}

// A copy from pinned memory makes the host wait for nothing: the device's stream comes to it in its turn.
void move_to(c10::Device device, Batch& batch) {
  for (auto* tensors : {&batch.inputs, &batch.targets}) {
    for (auto& tensor : *tensors) {
      const bool goes_by_itself = !device.is_cpu() && tensor.is_cpu() && tensor.is_pinned();
      tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/goes_by_itself);
    }
  }
}

namespace {

// Gives the batch pinned memory, once, if the device copies from it. MPS shares its memory with the host.
void pin(c10::Device device, Batch& batch) {
  if (!at::accelerator::isAcceleratorExcluded(device.type(), at::kMPS)) return;
  for (auto* tensors : {&batch.inputs, &batch.targets}) {
    for (auto& tensor : *tensors) {
      if (tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized()) tensor = tensor.pin_memory();
    }
  }
}

// Which of the batches a rank takes.
struct BatchShare {
  LoaderOrder order;
  size_t rank, world;
};

class PreparedBatches final : public PreparedLoader {
 public:
  PreparedBatches(std::vector<Batch> batches, std::optional<uint64_t> seed, BatchShare share, c10::Device device)
      : batches_(std::move(batches)), seed_(seed), share_(share), device_(device) {}
  size_t size() const override { return batches_.size() / share_.world; }
  void begin() override {
    end();
    open_ = true;
  }
  bool next(Batch& batch) override {
    if (position_ >= size()) return false;
    const size_t at = share_.order == LoaderOrder::kBlocks ? share_.rank * size() + position_
                                                           : position_ * share_.world + share_.rank;
    Batch& kept = batches_[seed_ ? data::KeyedPermutation(batches_.size(), *seed_, epoch_)[at] : at];
    pin(device_, kept);
    batch = kept;
    ++position_;
    move_to(device_, batch);
    return true;
  }
  void end() noexcept override {
    if (!std::exchange(open_, false)) return;
    ++epoch_;
    position_ = 0;
  }
  core::Value state() const override {
    data::LoaderState state;
    state.seed = seed_;
    state.epoch = epoch_;
    state.position = position_;
    state.num_samples = size();
    return value_of(state);
  }
  void load_state(const core::Value& value) override {
    const auto state = state_of(value);
    if (state.num_samples != size()) {
      throw UsageError(Origin{"learner"}, "the state of a loader with ", state.num_samples, " batches for one with ",
                       size(), "; resume with the same data.");
    }
    if (state.seed != seed_) {
      throw UsageError(Origin{"learner"}, "the state of a loader of batches in memory with seed ",
                       value.at("seed").to_json(), " for one with ", this->state().at("seed").to_json(),
                       "; resume with the same seed.");
    }
    end();
    epoch_ = state.epoch;
    position_ = static_cast<size_t>(state.position);
  }

 private:
  std::vector<Batch> batches_;
  std::optional<uint64_t> seed_;
  BatchShare share_;
  c10::Device device_;
  uint64_t epoch_ = 0;
  size_t position_ = 0;
  bool open_ = false;
};

class BatchesSource final : public LoaderSource {
 public:
  BatchesSource(std::vector<Batch> batches, std::optional<uint64_t> seed) : batches_(std::move(batches)), seed_(seed) {}
  std::unique_ptr<PreparedLoader> prepare(const Accelerator& accelerator, LoaderOrder order) const override {
    const BatchShare share{order, static_cast<size_t>(accelerator.rank()),
                           static_cast<size_t>(accelerator.world_size())};
    if (batches_.size() % share.world != 0) {
      throw UsageError(
          Origin{"learner", accelerator.rank(), accelerator.world_size()}, batches_.size(), " batches in memory for ",
          share.world,
          " ranks; expected a multiple, so that all ranks get as many. Use a data::loader, which evens them out.");
    }
    return std::make_unique<PreparedBatches>(batches_, seed_, share, accelerator.device());
  }
  std::shared_ptr<const LoaderSource> in_order() const override {
    return std::make_shared<BatchesSource>(batches_, std::nullopt);
  }
  std::optional<size_t> num_samples() const override {
    size_t count = 0;
    for (const auto& batch : batches_) count += static_cast<size_t>(batch.size());
    return count;
  }
  size_t batch_size() const override { return batches_.empty() ? 0 : static_cast<size_t>(batches_.front().size()); }

 private:
  std::vector<Batch> batches_;
  std::optional<uint64_t> seed_;
};

}  // namespace

std::shared_ptr<const LoaderSource> source_of(std::vector<Batch> batches, std::optional<uint64_t> seed) {
  return std::make_shared<BatchesSource>(std::move(batches), seed);
}

}  // namespace detail

Loader shuffled(std::vector<Batch> batches, uint64_t seed) {
  Loader loader;
  loader.source_ = detail::source_of(std::move(batches), seed);
  return loader;
}

Loader tensor_loader(const at::Tensor& inputs, const at::Tensor& targets, const TensorLoadersOptions& options) {
  const data::TensorDataset dataset(inputs, targets);
  auto loading = torch::data::DataLoaderOptions(
      static_cast<size_t>(at_least(1, "TensorLoadersOptions::batch_size", options.batch_size)));
  loading.drop_last(options.drop_last.value_or(false));
  const size_t size = *dataset.size();
  if (!options.shuffle) return data::loader(dataset, data::SeedableSequentialSampler(size), loading);
  const Loader shuffled = data::loader(dataset, data::SeedableRandomSampler(size, {.seed = options.seed}), loading);
  return options.drop_last ? shuffled : shuffled.without_short_batch();
}

Loaders tensor_loaders(const torch::data::Example<>& train, const torch::data::Example<>& valid,
                       const TensorLoadersOptions& options) {
  auto in_order = options;
  in_order.shuffle = false;
  in_order.drop_last = false;
  return {.train = tensor_loader(train.data, train.target, options),
          .valid = tensor_loader(valid.data, valid.target, in_order)};
}

Loaders tensor_loaders(const data::TensorDataset<2>& train, const data::TensorDataset<2>& valid,
                       const TensorLoadersOptions& options) {
  const auto example = [](const data::TensorDataset<2>& set) {
    return torch::data::Example<>(set.tensors()[0], set.tensors()[1]);
  };
  return tensor_loaders(example(train), example(valid), options);
}

}  // namespace hasten::learner
