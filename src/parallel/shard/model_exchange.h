// ModelExchange: the sharded model behind a Ddp, of the kind that suits the device on which the module's parameters
// are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/ddp/reducer_bucket.h"
#include "parallel/shard/device/device_model.h"
#include "parallel/shard/region_model.h"

namespace hasten::parallel::shard {

class ModelExchange : public GradientExchange {
 public:
  /// `device`: where a module goes whose parameters are on no accelerator.
  ModelExchange(comm::Group group, ShardOptions options, c10::Device device, ShardedModel::IsTaken is_taken);

  void release() override;
  std::vector<at::Tensor> place(const torch::nn::Module& module, const std::vector<std::string>& names,
                                const std::vector<at::Tensor>& trainable) override;
  std::vector<std::vector<size_t>> units() const override { return model_->units(); }
  std::unique_ptr<ReducerBucket> make_bucket(size_t unit, const ReducerBucketSettings& settings) override {
    return model_->make_bucket(unit, settings);
  }
  void begin(bool ends_window) override { model_->begin(ends_window); }
  void finish() override { model_->finish(); }

  /// Null before the first place().
  const std::shared_ptr<ShardedModel>& model() const noexcept { return model_; }

 private:
  comm::Group group_;
  ShardOptions options_;
  c10::Device device_;
  ShardedModel::IsTaken is_taken_;
  std::shared_ptr<ShardedModel> model_;
};

}  // namespace hasten::parallel::shard
