// NoSync: a scope in which backward keeps gradients on their rank (DistributedDataParallel.no_sync).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "hasten/parallel/ddp/ddp.h"

namespace hasten::parallel {

/// While it exists, backward through these models adds up gradients without exchanging them. The first backward after
/// it exchanges the sum. Scopes nest. Move-only. Its end only lets the exchange go on. With `exchanges` it is the scope
/// of a batch whose optimizer waits although gradients are exchanged (sync_each_batch). The models then only record it.
/// `held` lives as long.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::vector<std::shared_ptr<const Ddp>> models = {}, bool exchanges = false,
                  std::shared_ptr<const void> held = {})
      : models_(std::move(models)), exchanges_(exchanges), held_(std::move(held)) {
    set(false);
  }
  ~NoSync() { set(true); }
  NoSync(NoSync&& other) noexcept
      : models_(std::exchange(other.models_, {})), exchanges_(other.exchanges_), held_(std::move(other.held_)) {}
  NoSync& operator=(NoSync&&) = delete;

 private:
  void set(bool sync) const noexcept {
    for (const auto& model : models_) {
      auto& window = model->step().window();
      exchanges_ ? window.set_deferred(!sync) : window.set_sync(sync);
    }
  }
  std::vector<std::shared_ptr<const Ddp>> models_;
  bool exchanges_;
  std::shared_ptr<const void> held_;
};

}  // namespace hasten::parallel
