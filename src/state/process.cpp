// A process from given parts; see process.h.
#include "hasten/state/process.h"

#include "hasten/core/error.h"

namespace hasten::state {

struct Process::Impl {
  Identity identity;
  comm::Group group;
  c10::Device device;
};

Process::Process(Identity identity, comm::Group group, c10::Device device)
    : impl_(std::make_shared<Impl>(Impl{std::move(identity), std::move(group), device})) {}

const Identity& Process::identity() const noexcept {
  return impl_->identity;
}
c10::Device Process::device() const noexcept {
  return impl_->device;
}
const comm::Group& Process::group() const noexcept {
  return impl_->group;
}

void Process::wait_for_everyone() const {
  group().barrier();
}

}  // namespace hasten::state
