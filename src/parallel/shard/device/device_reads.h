// DeviceReads: puts units into memory before operators read their parameters; see device_units.h.
//
// It is called for every operator that takes a parameter, a view of it or a tensor that autograd has saved from it.
// Under autocast it gives operators of the lower precision the unit's low form in the parameter's place. So no copy of
// a weight lives from forward to backward. Views read nothing. Operators that write mark the unit as written to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hasten/interception/claim.h"
#include "hasten/interception/interceptor.h"
#include "parallel/layout/values_away.h"
#include "parallel/shard/device/device_units.h"

namespace hasten::parallel::shard {

/// Returns true if an operator only makes views of its tensors, and reads no memory.
bool is_pure_view(const c10::OperatorHandle& op);

class DeviceReads : public interception::Interceptor, public interception::Claim, public ValuesAway {
 public:
  struct Ahead {
    bool in_forward = true, in_backward = true;
  };
  DeviceReads(DeviceUnits& units, Ahead ahead) : units_(&units), ahead_(ahead) {}

  interception::Level level() const override { return interception::Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;
  void bring(const at::Tensor& tensor, bool writes) override;
  std::string words() const override { return units_ == nullptr ? "" : "split over ranks by sharding"; }

  struct Parameter {
    explicit Parameter(const at::Tensor& of) : tensor(of.getIntrusivePtr()) {}
    std::string name = {};
    size_t unit = 0;
    /// What operators of the lower precision get; undefined for none.
    at::Tensor low = {};
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  };
  /// By the storages of the parameter and of its low form.
  void add(const at::Tensor& parameter, Parameter what);
  bool holds(const at::Tensor& tensor) const;
  /// The units go. Reads throw from here on, unless memory is there.
  void forget();

 private:
  struct Place {
    size_t parameter = 0;
    bool low = false;
  };
  const Place* find(const at::Tensor& tensor) const;
  void read(const at::Tensor& tensor, std::vector<DeviceUnits::Form>& forms) const;
  bool replace(c10::IValue& argument) const;

  DeviceUnits* units_;
  Ahead ahead_;
  std::vector<Parameter> parameters_;
  std::unordered_map<const c10::StorageImpl*, Place> places_;
};

}  // namespace hasten::parallel::shard
