// See home.h.
#include "hasten/offload/units/home.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <utility>
#include <vector>

#include "hasten/compat/storage_watch.h"
#include "hasten/core/error.h"

namespace hasten::offload {

// The context of the storage's pointer at home: it keeps the place alive, and so does the home.
struct Home::Impl {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::shared_ptr<at::DataPtr> place;
  compat::StorageWatch watch = {};

  explicit Impl(c10::weak_intrusive_ptr<c10::StorageImpl> of, std::shared_ptr<at::DataPtr> at)
      : storage(std::move(of)), place(std::move(at)) {}

  at::DataPtr pointer() const {
    using Keep = std::shared_ptr<at::DataPtr>;
    return {place->get(), new Keep(place), [](void* keep) { delete static_cast<Keep*>(keep); }, place->device()};
  }
};

namespace {

void give_private_copy(c10::StorageImpl& storage) {
  at::DataPtr copy = c10::GetCPUAllocator()->allocate(storage.nbytes());
  std::memcpy(copy.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr_noswap(std::move(copy));
}

// The place outlives the copy: it is the home's, so threads that read it go on reading what was there.
class LeavesHome : public compat::StorageListener {
 public:
  explicit LeavesHome(const void* place) : place_(place) {}
  void before_write(c10::StorageImpl& storage) override {
    if (storage.data() == place_) give_private_copy(storage);
  }

 private:
  const void* place_;
};

}  // namespace

Home::Home() = default;

Home::Home(const at::Tensor& tensor, at::DataPtr place) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.is_cpu()) {
    throw UsageError(Origin{"offload"}, "a tensor of ", tensor.defined() ? tensor.toString() : "no type",
                     " has no storage on the CPU that could lie elsewhere. Move the model to the CPU.");
  }
  impl_ =
      std::make_shared<Impl>(tensor.storage().getWeakStorageImpl(), std::make_shared<at::DataPtr>(std::move(place)));
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(impl_->pointer());
  impl_->watch = compat::StorageWatch(tensor, std::make_shared<LeavesHome>(impl_->place->get()));
}

Home::~Home() {
  if (!impl_) return;
  impl_->watch = {};
  const auto storage = impl_->storage.lock();
  if (!storage || storage->data() != impl_->place->get()) return;
  try {
    give_private_copy(*storage);
  } catch (const std::exception&) {
    // Without memory for a copy the storage keeps the shared bytes, which it can read.
  }
}

Home::Home(Home&&) noexcept = default;

Home& Home::operator=(Home&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

bool Home::is_private() const noexcept {
  const auto storage = impl_ ? impl_->storage.lock() : nullptr;
  return storage && storage->data() != impl_->place->get();
}

bool Home::is_of(const at::Tensor& tensor) const noexcept {
  const auto storage = impl_ ? impl_->storage.lock() : nullptr;
  return storage && tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == storage.get();
}

void Home::restore() {
  const auto storage = impl_ ? impl_->storage.lock() : nullptr;
  if (!storage) return;
  if (storage->data() != impl_->place->get()) {
    impl_->watch.disarm();
    storage->set_data_ptr_noswap(impl_->pointer());
  }
  impl_->watch.rearm();
}

void Home::abandon(const std::string& message) {
  const auto storage = impl_ ? impl_->storage.lock() : nullptr;
  if (storage && storage->data() == impl_->place->get()) {
    impl_->watch = {};
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  }
  impl_.reset();
}

void Home::set_read_only_access(bool on) {
  if (!impl_ || is_private()) return;
  if (on) {
    impl_->watch.disarm();
  } else {
    impl_->watch.rearm();
  }
}

}  // namespace hasten::offload
