// See accelerator_base.h.
#include "hasten/accelerator_base.h"

namespace hasten {

AcceleratorBase::AcceleratorBase(state::Process process)
    : shared_(std::make_shared<Shared>(Shared{process, process.group().with_check(true)})) {}

void AcceleratorBase::set_trigger() const noexcept {
  shared_->triggered = true;
}

bool AcceleratorBase::check_trigger() const {
  const auto mine = at::scalar_tensor(shared_->triggered ? 1 : 0, at::kInt);
  const bool any = comm::reduce(group(), mine).item<int>() > 0;
  if (any) shared_->triggered = false;
  return any;
}

}  // namespace hasten
