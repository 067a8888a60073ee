// See model_exchange.h.
#include "parallel/shard/model_exchange.h"

#include "hasten/core/error.h"

namespace hasten::parallel::shard {
namespace {

// The accelerator on which a parameter is already, else the one for which it is prepared.
c10::Device device_of(const torch::nn::Module& module, c10::Device other) {
  for (const at::Tensor& tensor : module.parameters()) {
    if (tensor.defined() && !tensor.is_meta() && !tensor.is_cpu()) return tensor.device();
  }
  return other;
}

}  // namespace

ModelExchange::ModelExchange(comm::Group group, ShardOptions options, c10::Device device,
                             ShardedModel::IsTaken is_taken)
    : group_(std::move(group)), options_(std::move(options)), device_(device), is_taken_(std::move(is_taken)) {}

void ModelExchange::release() {
  if (model_) model_->release();
}

std::vector<at::Tensor> ModelExchange::place(const torch::nn::Module& module, const std::vector<std::string>& names,
                                             const std::vector<at::Tensor>& trainable) {
  const auto device = device_of(module, device_);
  const auto* before = dynamic_cast<const DeviceModel*>(model_.get());
  if (model_ && before != nullptr && before->device() != device) {
    throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "a model whose parameters are split over ",
                     before->device(), " was moved to ", device,
                     ". Gather it into a state_dict and load that into a model that is prepared there.");
  }
  if (!model_ || (before == nullptr) != device.is_cpu()) {
    model_.reset();
    if (device.is_cpu()) {
      model_ = std::make_shared<RegionModel>(group_, options_, is_taken_);
    } else {
      model_ = std::make_shared<DeviceModel>(group_, options_, device, is_taken_);
    }
  }
  return model_->place(module, names, trainable);
}

}  // namespace hasten::parallel::shard
