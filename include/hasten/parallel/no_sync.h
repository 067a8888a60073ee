// NoSync: a scope in which backward keeps gradients on their rank (DistributedDataParallel.no_sync).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "hasten/parallel/ddp.h"

namespace hasten::parallel {

/// While it lives, backward through these models adds up gradients without exchanging them; the first one
/// after it exchanges the sum. Scopes nest. Move-only; its end does nothing but let the exchange go on.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::vector<std::shared_ptr<const Ddp>> models = {}) : models_(std::move(models)) {
    for (const auto& model : models_) model->hold_back(true);
  }
  ~NoSync() {
    for (const auto& model : models_) model->hold_back(false);
  }
  NoSync(NoSync&& other) noexcept : models_(std::exchange(other.models_, {})) {}
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::vector<std::shared_ptr<const Ddp>> models_;
};

}  // namespace hasten::parallel
