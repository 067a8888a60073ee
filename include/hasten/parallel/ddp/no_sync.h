// NoSync: a scope in which backward keeps gradients on their rank (DistributedDataParallel.no_sync).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "hasten/parallel/ddp/ddp.h"

namespace hasten::parallel {

/// While it lives, backward through these models adds up gradients without exchanging them; the first one
/// after it exchanges the sum. Scopes nest. Move-only; its end does nothing but let the exchange go on.
/// With `exchanges` it is the scope of a batch whose optimizer waits although gradients are exchanged
/// (sync_each_batch), which the models only have to know.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::vector<std::shared_ptr<const Ddp>> models = {}, bool exchanges = false)
      : models_(std::move(models)), exchanges_(exchanges) {
    set(true);
  }
  ~NoSync() { set(false); }
  NoSync(NoSync&& other) noexcept : models_(std::exchange(other.models_, {})), exchanges_(other.exchanges_) {}
  NoSync& operator=(NoSync&&) = delete;

 private:
  void set(bool more) const noexcept {
    for (const auto& model : models_) exchanges_ ? model->wait(more) : model->hold_back(more);
  }
  std::vector<std::shared_ptr<const Ddp>> models_;
  bool exchanges_;
};

}  // namespace hasten::parallel
