// DeviceRun: operators of a model whose weights have several devices, or rest beside the one that computes.
//
// An operator runs where its weights compute: other arguments are moved there. Weights that rest on the host are
// replaced by their forms on the device (offload/units/device_feed.h). An operator without weights runs where the
// thread's last weight did, if its arguments have several devices. Values that are written to stay, and others come to
// them. So modules need no hooks. The handle's calls open a scope for all operators. Elsewhere the weights' own
// operators are seen, and those of values that have crossed from one device to another.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "hasten/interception/claim.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/load/pass_of_handle.h"
#include "offload/units/device_feed.h"

namespace hasten::offload::detail {

class DeviceRun : public interception::Interceptor,
                  public interception::Claim,
                  public std::enable_shared_from_this<DeviceRun> {
 public:
  interception::Level level() const override { return interception::Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;
  std::string words() const override { return stopped_ ? "" : "run on devices by a device map or a Placement"; }

  /// A weight that stays on `device`; `others`: further devices that its names compute on.
  void add_resident(const at::Tensor& weight, bool is_buffer, c10::Device device,
                    const std::vector<c10::Device>& others);
  /// Weights that rest on the host and compute on the feed's device.
  void add_feed(std::unique_ptr<DeviceFeed> feed);
  /// Begins: intercepts operators of all that was added.
  void start();
  /// Weights stay where they lie, and operators are libtorch's again. Forms that autograd has saved throw.
  void stop();

  /// Returns true if the tensor computes on a device other than the CPU; of those, whether it rests on the host.
  bool computes_elsewhere(const at::Tensor& tensor) const;
  bool rests(const at::Tensor& tensor) const;
  StreamCounts counts() const;

  /// A call of the handle: its thread begins on `main`.
  class Pass : public PassOfHandle {
   public:
    Pass(std::shared_ptr<DeviceRun> run, c10::Device main);
    ~Pass() override;

   private:
    std::shared_ptr<DeviceRun> run_;
    std::unique_ptr<interception::EveryOperatorScope> scope_;
  };

 private:
  struct Copy {
    at::Tensor tensor;
    uint32_t version = 0;
  };
  struct Weight {
    at::Tensor tensor = {};
    c10::Device device = c10::Device(at::kCPU);
    bool is_buffer = false;
    /// Where it rests on the host; -1 for a weight on its device.
    int feed = -1;
    size_t unit = 0, index = 0;
    /// On the further devices of its names.
    std::unordered_map<c10::Device, Copy> copies = {};
  };
  struct FormPlace {
    int feed = 0;
    size_t unit = 0;
    std::string name = {};
  };
  struct Call;

  Weight* find(const at::Tensor& tensor);
  const Weight* find(const at::Tensor& tensor) const { return const_cast<DeviceRun*>(this)->find(tensor); }
  const FormPlace* find_form(const at::Tensor& tensor) const;
  Call examine(const c10::OperatorHandle& op, const interception::Stack& stack);
  void choose_device(Call& call) const;
  void read_units(const Call& call, bool with_weights);
  at::Tensor placed(const at::Tensor& tensor, c10::Device device);
  at::Tensor form_of(const Weight& weight) const;
  at::Tensor copy_at(Weight& weight, c10::Device device);
  void follow(const at::Tensor& tensor);
  void add_first(const at::Tensor& weight);
  void refuse_ended(const interception::Stack& stack, size_t base) const;

  std::vector<std::unique_ptr<DeviceFeed>> feeds_;
  std::vector<Weight> weights_;
  std::mutex copies_mutex_;
  std::unordered_map<const c10::TensorImpl*, size_t> by_tensor_;
  std::unordered_map<const c10::StorageImpl*, FormPlace> forms_;
  size_t num_devices_ = 0;
  std::atomic<bool> stopped_ = false;
};

}  // namespace hasten::offload::detail
